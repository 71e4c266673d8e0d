"""Admission: answers of the origin that may be stored."""

from __future__ import annotations

import pytest

from gateway.model.objects import ObjectMeta
from gateway.model.outcomes import Reason
from gateway.policies.reads.admission import refusal
from gateway.policies.reads.rules import Caching

CAPACITY = 1000


def meta(etag: str = '"e"', size: int = 10, **headers: str) -> ObjectMeta:
    """Metadata with the given headers; underscores stand for hyphens."""
    pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return ObjectMeta(etag, size, "Thu, 01 Jan 2026 00:00:00 GMT", pairs, ())


def test_an_ordinary_object_may_be_kept() -> None:
    """A strong ETag, a length and no prohibition suffice; Cache-Control for browsers does not matter."""
    assert refusal(meta(Cache_Control="max-age=0, must-revalidate"), Caching(), CAPACITY) is None


@pytest.mark.parametrize("etag", ["", 'W/"weak"', '""', "W/weak", "two words", 'a"b'])
def test_without_a_strong_validator_nothing_is_kept(etag: str) -> None:
    """Bytes that cannot be told from newer ones are not cached."""
    assert refusal(meta(etag=etag), Caching(), CAPACITY) is Reason.NO_VALIDATOR


def test_a_store_may_leave_out_the_quotes() -> None:
    """An entity tag without its quotes tells versions apart as well."""
    assert refusal(meta(etag="0123abcdef-7"), Caching(), CAPACITY) is None


def test_without_a_length_nothing_is_kept() -> None:
    """A body whose end is not known cannot be told from a truncated one."""
    assert refusal(meta(size=-1), Caching(), CAPACITY) is Reason.NO_VALIDATOR


@pytest.mark.parametrize("value", ["no-store", "private", "max-age=5, No-Store", 'private="x"'])
def test_the_owner_can_forbid_it(value: str) -> None:
    """no-store and private are honoured in any spelling."""
    assert refusal(meta(Cache_Control=value), Caching(), CAPACITY) is Reason.CACHE_CONTROL


def test_objects_under_a_customer_key_are_never_kept() -> None:
    """An object encrypted under a customer's key at the origin is never stored, because a hit would not require the key."""
    header = "x_amz_server_side_encryption_customer_algorithm"
    assert refusal(meta(**{header: "AES256"}), Caching(), CAPACITY) is Reason.HEADER


def test_one_object_takes_at_most_half_of_the_cache() -> None:
    """A single object must not empty the cache."""
    assert refusal(meta(size=500), Caching(), CAPACITY) is None
    assert refusal(meta(size=501), Caching(), CAPACITY) is Reason.TOO_LARGE


def test_a_rule_can_exclude_objects() -> None:
    """A refusal by ``cache = false`` has its own reason."""
    assert refusal(meta(), Caching(cache=False), CAPACITY) is Reason.RULE
