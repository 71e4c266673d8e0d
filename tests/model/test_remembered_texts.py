"""Caches of what texts mean: anyone may send a header of 64 KiB, so only short texts are remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.model import keys
from gateway.model.s3 import conditions, sigv4
from gateway.policies.reads import owner
from gateway.policies.reads.rules import Caching

LONG = 60_000
RULE = Caching()


@pytest.mark.parametrize(
    ("ask", "cache", "text", "long", "meanings"),
    [
        (
            conditions.http_date,
            conditions._http_date,
            "Fri, 13 Feb 2009 23:31:30 GMT",
            "Fri, 13 Feb 2009 23:31:30 GMT".ljust(LONG),
            (1234567890.0, None),
        ),
        (
            sigv4.parse_amz_date,
            sigv4._parse_amz_date,
            "20090213T233130Z",
            "20090213T233130Z".ljust(LONG),
            (1234567890.0, None),
        ),
        (keys.is_bucket_name, keys._is_bucket_name, "short-lived", "b" * LONG, (True, False)),
        (
            lambda value: owner.obeyed(RULE, [("Cache-Control", value)]).freshness,
            owner._kept,
            "max-age=17",
            "max-age=17".ljust(LONG),
            (17.0, 17.0),
        ),
    ],
    ids=["http-date", "amz-date", "bucket", "cache-control"],
)
def test_long_texts_are_understood_and_not_remembered(
    ask: Callable[[str], object], cache: Any, text: str, long: str, meanings: tuple[object, object]
) -> None:
    """A short text is remembered; a long one means the same or nothing, and takes no memory."""
    cache.cache_clear()
    assert ask(text) == meanings[0]
    assert cache.cache_info().currsize == 1
    assert ask(long) == meanings[1]
    assert cache.cache_info().currsize == 1
