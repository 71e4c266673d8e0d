"""Headers of origins' answers: relaying, and facts about the object."""

from __future__ import annotations

import asyncio

import pytest

from gateway.net.connection import IncomingAnswer
from gateway.origin.headers import content_range, entity_headers, has_what_was_asked, relayable

ANSWER = [
    ("Date", "Tue, 18 Nov 2026 10:00:00 GMT"), ("Server", "AmazonS3"), ("x-amz-request-id", "1"), ("x-amz-id-2", "2"),
    ("ETag", '"abc"'), ("Last-Modified", "Mon, 17 Nov 2026 10:00:00 GMT"), ("Content-Type", "image/jpeg"),
    ("x-amz-meta-Class", "cat"), ("Content-Length", "11"), ("x-amz-version-id", "v"), ("x-amz-storage-class", "STANDARD_IA"),
    ("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-checksum-type", "FULL_OBJECT"), ("Connection", "keep-alive, X-Private"),
    ("X-Private", "1"), ("Keep-Alive", "timeout=5"), ("x-amz-server-side-encryption", "AES256"),
]  # fmt: skip


def test_headers_that_connection_names_are_not_relayed() -> None:
    """RFC 9110, 7.6.1: what Connection nominates concerns this connection only."""
    sent = [("connection", "close, X-Hop"), ("x-hop", "1"), ("X-Keep", "2")]
    assert relayable(sent) == [("X-Keep", "2")]


def test_an_answer_is_relayed_whole_but_for_its_connection() -> None:
    """Order, spelling and everything else of the origin's answer reach the client."""
    gone = {"Connection", "X-Private", "Keep-Alive"}
    assert relayable(ANSWER) == [pair for pair in ANSWER if pair[0] not in gone]


def test_entity_headers_of_a_whole_object() -> None:
    """A hit replays the object's headers, not those of the origin's answer."""
    meta = entity_headers(ANSWER)
    assert (meta.etag, meta.size, meta.last_modified) == ('"abc"', 11, "Mon, 17 Nov 2026 10:00:00 GMT")
    assert meta.checksums == (("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-checksum-type", "FULL_OBJECT"))
    assert [name for name, _ in meta.headers] == [
        "Last-Modified", "Content-Type", "x-amz-meta-Class", "x-amz-version-id", "x-amz-storage-class",
        "x-amz-server-side-encryption",
    ]  # fmt: skip


def test_no_checksums_differ_from_unknown_checksums() -> None:
    """Absent checksums mean "none" if they were requested for the whole object, otherwise "unknown"."""
    plain = [("ETag", '"a"'), ("Content-Length", "1")]
    assert entity_headers(plain).checksums == ()
    assert entity_headers(plain, checksums_asked=False).checksums is None
    ranged = [*plain, ("Content-Range", "bytes 0-0/7"), ("x-amz-checksum-crc32", "AAAAAA==")]
    assert entity_headers(ranged).checksums is None


@pytest.mark.parametrize(
    ("headers", "size"),
    [
        ([("Content-Length", "3"), ("Content-Range", "bytes 4-6/99")], 99),
        ([("Content-Length", "3"), ("Content-Range", "bytes 4-6/*")], -1),
        ([], -1),
        ([("Content-Length", "٣")], -1),
        ([("Content-Length", "-3")], -1),
    ],
)
def test_size_is_the_objects_or_unknown(headers: list[tuple[str, str]], size: int) -> None:
    """A 206 tells the length after the slash; an answer that does not tell makes the object uncacheable."""
    assert entity_headers(headers).size == size


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("bytes 0-4/5", (0, 4, 5)),
        ("bytes */5", None),
        ("items 0-4/5", None),
        ("bytes 0-4/*", None),
        ("bytes 0-/5", None),
        ("", None),
    ],
)
def test_only_an_exact_content_range_counts(value: str, expected: tuple[int, int, int] | None) -> None:
    """RFC 9110, 14.4: a fill is kept only when the origin said exactly which bytes it sent."""
    assert content_range(value) == expected


def test_the_headers_of_another_larder_are_its_own() -> None:
    """Rule: behind another gateway the client sees the cache status of the one that it asked, once."""
    sent = [("X-Larder-Cache", "HIT"), ("x-larder-request-id", "1"), ("ETag", '"e"')]
    assert relayable(sent) == [("ETag", '"e"')]


RANGE = ("range", "bytes=0-2")


@pytest.mark.parametrize(
    ("status", "span", "asked", "query", "right", "meant"),
    [
        (200, None, [], "", True, 200),
        (200, None, [RANGE], "", True, 200),  # a store that knows no ranges
        (206, "bytes 0-2/9", [RANGE], "", True, 206),
        (206, None, [RANGE], "", True, 206),  # several ranges
        (200, "bytes 0-2/9", [RANGE], "", True, 206),  # rclone serve s3
        (206, "bytes 0-8/9", [], "", True, 200),
        (206, "bytes 0-2/9", [], "", False, 206),
        (206, "bytes 0-2/*", [], "", False, 206),
        (200, "bytes 3-8/9", [], "", False, 200),
        (206, None, [], "", False, 206),
        (206, "bytes 0-2/9", [], "partNumber=1", True, 206),
        (416, "bytes */9", [RANGE], "", True, 416),
        (404, None, [], "", True, 404),
    ],
)
async def test_a_status_says_what_the_bytes_are(
    status: int, span: str | None, asked: list[tuple[str, str]], query: str, right: bool, meant: int
) -> None:
    """Rule: a part has status 206 and the whole 200, whatever the store says; a part that nobody asked for is no answer."""
    loop = asyncio.get_running_loop()
    answer = IncomingAnswer(loop, loop.create_future())
    answer.status, answer.headers = status, [("Content-Range", span)] if span else []
    answer.fields = {"content-range": span} if span else {}
    assert (has_what_was_asked(answer, asked, query), answer.status) == (right, meant)
    assert ("content-range" in answer.fields) == (span is not None and not (right and meant == 200))


async def test_the_whole_stays_whole_where_no_range_was_asked_for() -> None:
    """Rule: radosgw answers a header that is no range with the whole, 200 and a Content-Range; both are relayed."""
    loop = asyncio.get_running_loop()
    answer = IncomingAnswer(loop, loop.create_future())
    answer.status, answer.fields = 200, {"content-range": "bytes 0-8/9"}
    assert has_what_was_asked(answer, [("Range", "items=0-1")], "")
    assert (answer.status, answer.fields) == (200, {"content-range": "bytes 0-8/9"})
