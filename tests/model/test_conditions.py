"""Conditional requests in the order of RFC 9110 section 13.2.2, with S3's documented combinations."""

from __future__ import annotations

import pytest

from gateway.model.s3.conditions import Conditions, ConditionVerdict, http_date, range_applies

ETAG = '"9b2cf535f27731c974343645a3985328"'
OTHER = '"00000000000000000000000000000000"'
MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"
BEFORE = "Wed, 21 Oct 2015 07:27:59 GMT"
AFTER = "Wed, 21 Oct 2015 07:28:01 GMT"

PASS, NOT_MODIFIED, FAILED = ConditionVerdict.PASS, ConditionVerdict.NOT_MODIFIED, ConditionVerdict.PRECONDITION_FAILED


def verdict(**headers: str) -> ConditionVerdict:
    """The verdict on the object of this test."""
    return Conditions(**headers).evaluate(ETAG, MODIFIED)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ETAG, PASS),
        (OTHER, FAILED),
        ("*", PASS),
        (f"{OTHER}, {ETAG}", PASS),
        (f"{OTHER},{ETAG}", PASS),
        (f"W/{ETAG}", FAILED),
        (ETAG.strip('"'), PASS),
        (f"{OTHER.strip(chr(34))}, {ETAG.strip(chr(34))}", PASS),
        ("", FAILED),
        ('"a,b", "c', FAILED),
    ],
)
def test_if_match(value: str, expected: ConditionVerdict) -> None:
    """If-Match compares strongly with a list or "*"; S3 accepts tags without quotes."""
    assert verdict(if_match=value) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ETAG, NOT_MODIFIED),
        (OTHER, PASS),
        ("*", NOT_MODIFIED),
        (f"{OTHER} , {ETAG}", NOT_MODIFIED),
        (f"W/{ETAG}", NOT_MODIFIED),
        (f'W/{OTHER}, "x"', PASS),
        (ETAG.strip('"'), NOT_MODIFIED),
        ("W/", PASS),
    ],
)
def test_if_none_match(value: str, expected: ConditionVerdict) -> None:
    """If-None-Match compares weakly with a list or "*"; S3 accepts tags without quotes."""
    assert verdict(if_none_match=value) is expected


def test_comma_within_a_tag() -> None:
    """A comma between quotes is part of the entity tag."""
    assert Conditions(if_match='"a,b"').evaluate('"a,b"', MODIFIED) is PASS
    assert Conditions(if_match='"a,b"').evaluate('"a"', MODIFIED) is FAILED


@pytest.mark.parametrize(
    ("value", "expected"),
    [(BEFORE, PASS), (MODIFIED, NOT_MODIFIED), (AFTER, NOT_MODIFIED), ("soon", PASS)],
)
def test_if_modified_since(value: str, expected: ConditionVerdict) -> None:
    """Unchanged at that date or later is 304; a date that cannot be read is ignored."""
    assert verdict(if_modified_since=value) is expected


@pytest.mark.parametrize(
    ("value", "expected"), [(BEFORE, FAILED), (MODIFIED, PASS), (AFTER, PASS), ("31 Smarch", PASS), ("", PASS)]
)
def test_if_unmodified_since(value: str, expected: ConditionVerdict) -> None:
    """Changed after that date is 412; a date that cannot be read is ignored."""
    assert verdict(if_unmodified_since=value) is expected


def test_future_date_is_compared_like_any_other() -> None:
    """A date in the future is a date: nothing was modified after it."""
    future = "Thu, 01 Jan 2099 00:00:00 GMT"
    assert verdict(if_modified_since=future) is NOT_MODIFIED
    assert verdict(if_unmodified_since=future) is PASS


def test_if_match_decides_over_the_date() -> None:
    """S3: If-Match true and If-Unmodified-Since false is 200."""
    assert verdict(if_match=ETAG, if_unmodified_since=BEFORE) is PASS


def test_failed_if_match_is_not_saved_by_the_date() -> None:
    """A false If-Match gets 412 regardless of If-Unmodified-Since."""
    assert verdict(if_match=OTHER, if_unmodified_since=AFTER) is FAILED


def test_if_none_match_decides_over_the_date() -> None:
    """S3: If-None-Match false and If-Modified-Since true is 304."""
    assert verdict(if_none_match=ETAG, if_modified_since=BEFORE) is NOT_MODIFIED


def test_other_tag_passes_whatever_the_date() -> None:
    """With If-None-Match true, If-Modified-Since is not looked at (RFC 9110, 13.1.3)."""
    assert verdict(if_none_match=OTHER, if_modified_since=AFTER) is PASS


def test_failed_precondition_comes_before_not_modified() -> None:
    """If-Match is evaluated before If-None-Match."""
    assert verdict(if_match=OTHER, if_none_match=ETAG) is FAILED
    assert verdict(if_match=ETAG, if_none_match=ETAG) is NOT_MODIFIED


def test_reading_headers() -> None:
    """Conditions are read by header name; without any, the result is None."""
    headers = {b"if-none-match": b'"x"', b"range": b"bytes=0-"}
    assert Conditions.read(headers.get) == Conditions(if_none_match='"x"')
    assert Conditions.read({b"range": b"bytes=0-"}.get) is None


@pytest.mark.parametrize(
    "text", ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
)
def test_three_forms_of_dates(text: str) -> None:
    """All three forms of RFC 9110 section 5.6.7 are the same moment."""
    assert http_date(text) == 784111777.0


@pytest.mark.parametrize(
    "text", [None, "", "yesterday", "Sun, 06 Nov 99999 08:49:37 GMT", "Sun, 99 Nov 1994 08:49:37 GMT"]
)
def test_unreadable_dates(text: str | None) -> None:
    """An unreadable date counts as absent and raises no error."""
    assert http_date(text) is None


@pytest.mark.parametrize(
    ("value", "applies"),
    [
        (None, True),
        (ETAG, True),
        (f" {ETAG} ", True),
        (OTHER, False),
        (f"W/{ETAG}", False),
        (MODIFIED, False),
        ("", False),
    ],
)
def test_if_range(value: str | None, applies: bool) -> None:
    """A range is honoured only with an equal strong tag, or without If-Range."""
    assert range_applies(value, ETAG) is applies


def test_if_range_with_a_weak_object() -> None:
    """A weak entity tag proves nothing about bytes, even when it is equal (RFC 9110, 13.1.5)."""
    assert range_applies('W/"x"', 'W/"x"') is False


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"if_match": ETAG},
        {"if_match": ETAG.strip('"')},
        {"if_match": "*"},
        {"if_none_match": f"W/{ETAG}"},
        {"if_none_match": "*", "if_modified_since": AFTER},
        {"if_match": ETAG, "if_unmodified_since": AFTER},
        {"if_modified_since": MODIFIED},
        {"if_modified_since": BEFORE},
        {"if_unmodified_since": "garbage"},
        {"if_range": ETAG},
        {"if_range": MODIFIED},
    ],
)
def test_a_condition_on_the_known_version_raises_no_doubt(headers: dict[str, str]) -> None:
    """Rule: what names this version, none, or an earlier time is answered without the store."""
    assert not Conditions(**headers).doubts(ETAG, MODIFIED)


@pytest.mark.parametrize(
    "headers",
    [
        {"if_match": OTHER},
        {"if_match": f"{ETAG}, {OTHER}"},
        {"if_none_match": OTHER},
        {"if_none_match": f"{OTHER}, {ETAG}"},
        {"if_match": ETAG, "if_none_match": OTHER},
        {"if_modified_since": AFTER},
        {"if_unmodified_since": AFTER},
        {"if_range": OTHER},
        {"if_range": AFTER},
    ],
)
def test_a_condition_on_another_version_raises_doubt(headers: dict[str, str]) -> None:
    """Rule: a reader who names another tag, or a later time, may know more than the cache."""
    assert Conditions(**headers).doubts(ETAG, MODIFIED)


def test_tags_without_quotes_are_the_same_tags() -> None:
    """Rule: neither store nor client need to write the quotes of an entity tag; a client must in If-Range, unless the store
    leaves them out too."""
    plain = ETAG.strip('"')
    assert Conditions(if_match=ETAG).evaluate(plain, MODIFIED) is PASS
    assert Conditions(if_none_match=plain).evaluate(plain, MODIFIED) is NOT_MODIFIED
    assert not range_applies(plain, ETAG)
    assert range_applies(ETAG, plain)
    assert range_applies(plain, plain)
