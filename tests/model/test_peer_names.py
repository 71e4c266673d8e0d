"""Encoding of names between nodes: any key survives the round trip."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer.objects import OBJECTS, CacheStatus, error_document, object_of, object_path, read_error
from gateway.model.peer.principal import principal_header, read_principal

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(TEXT, TEXT)
def test_an_address_names_one_object(origin: str, name: str) -> None:
    """Rule: an address decodes to the object it was made from; each part is one segment of unreserved characters."""
    key = ObjectKey(origin, "bucket.name", name)
    path = object_path(key)
    assert object_of(path.encode()) == key
    assert re.fullmatch(r"/-/peer/v1/objects(/[A-Za-z0-9._~%-]+){3}", path)


@pytest.mark.parametrize(
    "path",
    ["", "o/b", "o/b/", "o/b/k/k", "o/-/k", "o/../k", "o//k", "o/b%2Fc/k", "o/b/%FF", "%FF/b/k"],
)
def test_other_addresses_name_nothing(path: str) -> None:
    """Rule: an address that names no object is refused, and never read as another one."""
    with pytest.raises(ValueError):
        object_of(f"{OBJECTS}{path}".encode())


def test_an_address_of_something_else_names_nothing() -> None:
    """Rule: an address begins as all of them do."""
    with pytest.raises(ValueError, match="address"):
        object_of(b"/o/b/k")


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("reason", [None, *Reason])
def test_what_a_cache_did_is_read_as_it_was_told(outcome: Outcome, reason: Reason | None) -> None:
    """Rule: every outcome and reason crosses."""
    assert CacheStatus.read(str(CacheStatus(outcome, reason))) == CacheStatus(outcome, reason)


@pytest.mark.parametrize(
    ("text", "general"),
    [
        ("HIT; reason=whim", CacheStatus(Outcome.HIT)),
        ("MISS; reason=all-new", CacheStatus(Outcome.MISS, Reason.COLD)),
        ("STALE; reason=whim", CacheStatus(Outcome.STALE, Reason.ORIGIN_DOWN)),
        ("BYPASS; reason=whim", CacheStatus(Outcome.BYPASS, Reason.NOT_A_READ)),
    ],
)
def test_a_reason_of_another_version_is_read_as_a_general_one(text: str, general: CacheStatus) -> None:
    """Rule: a fleet of two versions works: an answer is not refused for a reason that this version does not know."""
    assert CacheStatus.read(text) == general


@pytest.mark.parametrize(
    "text", ["", "YES", "HIT; reason=", "HIT; reason=a b", "HIT; reason=Cold", "HIT;reason=cold", "hit"]
)
def test_other_words_are_refused(text: str) -> None:
    """Rule: an unknown outcome, or a reason in another form, is not a valid answer."""
    with pytest.raises(ValueError, match="not a valid"):
        CacheStatus.read(text)


@given(st.text(), st.text(), st.text(), st.booleans())
def test_a_principal_is_read_as_it_was_told(tenant: str, origin: str, key: str, pays: bool) -> None:
    """Rule: any name crosses, in ASCII, and so does the word on charges."""
    name, value = principal_header(tenant, OriginIdentity(origin, key, pays))
    assert name == "x-larder-principal"
    assert value.isascii()
    assert value.isprintable()
    principal = read_principal(value)
    assert (principal.tenant, principal.identity) == (tenant, OriginIdentity(origin, key, pays))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"a"', '{"tenant":"t","origin":"o"}', '{"tenant":"t","origin":"o","access_key_id":1}',
     '{"tenant":"t","origin":"o","access_key_id":"k","allow":"**"}',
     '{"tenant":"t","origin":"o","access_key_id":"k","pays":"requester"}', "[" * 100_000],
)  # fmt: skip
def test_a_principal_in_another_form_is_refused(text: str) -> None:
    """Rule: a principal has exactly its three names, as texts, and at most a truth value on charges."""
    with pytest.raises(ValueError, match="tenant"):
        read_principal(text)


@given(st.dictionaries(st.text(), st.text()))
def test_what_is_told_of_an_error_is_read_as_it_was_told(extra: dict[str, str]) -> None:
    """Rule: error details with any names and texts survive the round trip; the empty body of a HEAD has none."""
    assert read_error(error_document(extra)) == extra
    assert read_error(b"") == {}


@pytest.mark.parametrize("document", [b"[]", b"{", b'{"a":1}', b"\xff", b"null", b"[" * 100_000])
def test_an_error_told_in_another_form_is_refused(document: bytes) -> None:
    """Rule: a malformed error document is refused."""
    with pytest.raises(ValueError):
        read_error(document)
