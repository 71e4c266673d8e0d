"""Listings that are read while they pass."""

from __future__ import annotations

import pytest

from gateway.model.s3.listings import LONGEST_ROW, ListingScanner, SeenVersion

WHEN = "2025-11-01T10:00:00.000Z"
SECONDS = 1761991200.0


def row(key: str, etag: str = "&quot;e&quot;", size: object = 5, kind: str = "Contents", more: str = "") -> bytes:
    """One object's element."""
    return (
        f"<{kind}><Key>{key}</Key>{more}<LastModified>{WHEN}</LastModified><ETag>{etag}</ETag><Size>{size}</Size></{kind}>"
    ).encode()


def scanned(document: bytes, step: int = 0, *, encoded: bool = False) -> list[SeenVersion]:
    """The objects of a document that comes in pieces of ``step`` bytes."""
    scanner, step = ListingScanner(encoded=encoded), step or len(document)
    return [each for start in range(0, len(document), step) for each in scanner.feed(document[start : start + step])]


@pytest.mark.parametrize("step", [0, 1, 7, 100])
def test_every_object_is_seen_however_the_document_is_cut(step: int) -> None:
    """Rule: pieces may end anywhere."""
    document = (
        b"<?xml?><ListBucketResult><Name>b</Name>" + row("a") + row("b &amp; c", '"f"', 0) + b"</ListBucketResult>"
    )
    assert scanned(document, step) == [SeenVersion("a", '"e"', 5, SECONDS), SeenVersion("b & c", '"f"', 0, SECONDS)]


def test_of_versions_the_latest_counts() -> None:
    """Rule: older versions say nothing of the current one; a delete marker that is the latest says that there is none."""
    latest, older = "<IsLatest>true</IsLatest>", "<IsLatest>false</IsLatest>"
    document = row("a", kind="Version", more=latest) + row("a", kind="Version", more=older)
    document += b"<DeleteMarker><Key>gone</Key><IsLatest>true</IsLatest></DeleteMarker>"
    assert scanned(document) == [SeenVersion("a", '"e"', 5, SECONDS), SeenVersion("gone", gone=True)]


def test_encoded_keys_are_decoded() -> None:
    """Rule: with encoding-type=url each reading of a key is seen, as stores differ on "+" and on whether they encode."""
    assert {each.key for each in scanned(row("d/a+b%20%2B"), encoded=True)} == {"d/a+b%20%2B", "d/a+b +", "d/a b +"}
    assert [each.key for each in scanned(row("a%20b"))] == ["a%20b"]


@pytest.mark.parametrize(
    "document",
    [
        b"<Contents>" * 5000,
        b"<Contents><Key>a</Key>" + b"x" * (2 * LONGEST_ROW) + b"</Contents>",
        b"<Contents><Size>5</Size></Contents>",
        b"<Contents><Key><b>a</b></Key></Contents>",
        b"<Contents><Key>\xff</Key></Contents>",
        b"<Contents><Key>&#xD800;</Key></Contents>",
        b"<Contents><Key>&#x110000;</Key></Contents>",
        b"not XML at all",
    ],
    ids=["nested", "long", "keyless", "elements", "latin", "half a character", "no character", "text"],
)
@pytest.mark.parametrize("step", [0, 1000])
def test_what_is_no_listing_is_passed_over(document: bytes, step: int) -> None:
    """Rule: nothing is seen in a document that does not say it, and nothing of it is kept."""
    scanner, step = ListingScanner(encoded=False), step or len(document)
    for start in range(0, len(document), step):
        assert scanner.feed(document[start : start + step]) == []
        assert len(scanner._rest) <= LONGEST_ROW


def test_a_row_after_a_broken_one_is_seen() -> None:
    """Rule: what cannot be read costs the object alone."""
    assert [each.key for each in scanned(row("a", size="many") + b"<Contents></Contents>" + row("b"))] == ["a", "b"]
    assert scanned(row("a", size="many"))[0].size == -1
