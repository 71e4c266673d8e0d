"""What a node has forgotten lately, as its workers share it."""

from __future__ import annotations

from gateway.model.keys import ObjectKey, rights_in
from gateway.store.shared.forgotten import PREFIXES, WITHIN, WORDS, ForgottenKeys


def key(name: str, bucket: str = "b") -> ObjectKey:
    """A key of the default origin."""
    return ObjectKey("default", bucket, name)


def words() -> memoryview:
    """Memory of a record in which nothing was forgotten."""
    return memoryview(bytearray(4 * WORDS)).cast("I")


def test_what_was_forgotten_long_ago_may_be_taken_over_again() -> None:
    """Rule: it is remembered for as long as homes count as moved."""
    now = [0.0]
    record = ForgottenKeys(words(), lambda: now[0])
    record.note_keys([key("first")])
    now[0] = WITHIN - 1
    assert key("first") in record
    assert key("second") not in record
    now[0] = WITHIN + 1
    assert key("first") not in record


def test_a_change_of_rights_stands_for_the_bucket() -> None:
    """Rule: forgetting the grants in a bucket counts for all of its objects, and for no others."""
    record = ForgottenKeys(words())
    record.note_keys([rights_in(key("k"))])
    assert key("any") in record
    assert key("any", "elsewhere") not in record


def test_a_purged_prefix_stands_for_what_is_below_it() -> None:
    """Rule: all keys of the bucket that begin with the prefix count, of every origin."""
    record = ForgottenKeys(words())
    record.note_prefix("b", "a/é")
    assert key("a/é/k") in record
    assert ObjectKey("other", "b", "a/é") in record
    assert key("a/") not in record
    assert key("a/é/k", "elsewhere") not in record


def test_more_prefixes_than_places_make_everything_count() -> None:
    """Rule: no prefix is lost; with more than can be told apart everything counts as forgotten, until that is long ago."""
    now = [0.0]
    record = ForgottenKeys(words(), lambda: now[0])
    for number in range(PREFIXES + 1):
        record.note_prefix("b", f"{number}/")
    assert all(key(f"{number}/k") in record for number in range(PREFIXES + 1))
    assert key("elsewhere") in record
    now[0] = WITHIN + 1
    assert key("elsewhere") not in record


def test_a_prefix_that_is_purged_again_keeps_its_place() -> None:
    """Rule: the same prefix takes no second place."""
    record = ForgottenKeys(words())
    for _ in range(2):
        record.note_prefix("b", "a/")
    assert key("z/k") not in record


def test_a_new_table_takes_over_what_the_old_one_had() -> None:
    """Rule: keys that were forgotten under a private table count under the shared one; after a purge everything does."""
    private, shared = ForgottenKeys(words()), ForgottenKeys(words())
    private.note_keys([key("k")])
    shared.take_over(private)
    assert key("k") in shared
    assert key("other") not in shared
    private.note_prefix("b", "a/")
    shared.take_over(private)
    assert key("other") in shared
