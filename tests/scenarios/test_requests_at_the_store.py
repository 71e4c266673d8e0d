"""The requests that reads make at the store: the table in docs/s3-compatibility.md, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.testing.origin import ALICE
from tests.gateways import Running, Settings, gateway
from tests.scenarios.clients import Client
from tests.scenarios.world import MIB, Origin, content, eventually

PAGE = Path(__file__).parents[2] / "docs/s3-compatibility.md"
SIZE = 3 * MIB
LARGE = f"bytes=0-{MIB - 1}"
OTHER = '"0123456789abcdef0123456789abcdef"'
ETAG = "the ETag"
READS: dict[str, tuple[str, dict[str, str]]] = {
    "GET": ("GET", {}),
    "HEAD": ("HEAD", {}),
    "HEAD again": ("HEAD", {}),
    "range, small": ("GET", {"Range": "bytes=100-999"}),
    "range, of a quarter of a block or more": ("GET", {"Range": LARGE}),
    "range, to the end": ("GET", {"Range": f"bytes={MIB + 5}-"}),
    "range, of a large suffix": ("GET", {"Range": f"bytes=-{MIB}"}),
    "range beyond the end": ("GET", {"Range": f"bytes={SIZE}-"}),
    "If-None-Match, the object's ETag": ("GET", {"If-None-Match": ETAG}),
    "If-None-Match, another ETag": ("GET", {"If-None-Match": OTHER}),
    "If-Match, another ETag": ("GET", {"If-Match": OTHER}),
    "range, If-Match": ("GET", {"Range": LARGE, "If-Match": ETAG}),
    "no-cache": ("GET", {"Cache-Control": "no-cache"}),
    "GET, missing": ("GET", {}),
    "HEAD, missing": ("HEAD", {}),
    "range, missing": ("GET", {"Range": LARGE}),
    "If-None-Match, missing": ("GET", {"If-None-Match": OTHER}),
    "GET, refused": ("GET", {}),
    "HEAD, refused": ("HEAD", {}),
    "range, refused": ("GET", {"Range": "bytes=0-9"}),
    "GET, empty": ("GET", {}),
    "range, empty": ("GET", {"Range": LARGE}),
    "GET, not to be kept": ("GET", {}),
    "range, not to be kept": ("GET", {"Range": f"bytes=100000-{MIB + 99}"}),
    "HEAD, not to be kept": ("HEAD", {}),
    "GET by a page (Origin)": ("GET", {"Origin": "https://page.example"}),
    "GET, expected owner": ("GET", {"x-amz-expected-bucket-owner": "123456789012"}),
    "GET, requester pays": ("GET", {"x-amz-request-payer": "requester"}),
}


def rows() -> list[tuple[str, str, str]]:
    """The rows of the table: read, requests when cold, and when warm."""
    table = PAGE.read_text().partition("<!-- requests -->")[2].partition("<!-- end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [
        (cells[0], cells[1], cells[2]) for cells in ([cell.strip() for cell in line.split("|")[1:4]] for line in lines)
    ]


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with one worker, which nobody else uses."""
    settings = Settings(origin.endpoint, tmp_path_factory.mktemp("cache"))
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield running


class Case:
    """One row: an object in a bucket of its own, and the client that reads it."""

    def __init__(self, origin: Origin, client: Client, bucket: str, row: str) -> None:
        self.origin, self.client, self.row = origin, client, row
        self.path = f"/{bucket}/k"
        self.method, self.headers = READS[row]
        self.etag = ""
        origin.s3.buckets.pages[bucket] = self.headers.get("Origin", "")
        kind = row.partition(", ")[2]
        if kind == "missing":
            origin.put(f"/{bucket}/other", b"x")
        else:
            body = b"" if kind == "empty" else content(SIZE, self.path)
            headers = [("Cache-Control", "no-store")] if kind == "not to be kept" else []
            self.etag = origin.s3.put(bucket, "k", body, headers).etag
        if kind == "refused":
            origin.s3.deny(ALICE.access_key_id, f"{bucket}/*")

    def warm(self) -> None:
        """Read the whole, until it is cached, or as often as a reader might."""
        for _ in range(2):
            self.client.get(self.path)
        if self.row.partition(", ")[2] in ("missing", "refused", "not to be kept"):
            return
        eventually(lambda: self.client.get(self.path).cache, lambda cache: cache == "HIT", "a hit")
        if "Origin" in self.headers or "x-amz-expected-bucket-owner" in self.headers:
            self.ask()  # the first of its bucket

    def ask(self) -> str:
        """Read, and name the requests that the store saw."""
        before = len(self.origin.s3.seen)
        headers = {name: self.etag if value == ETAG else value for name, value in self.headers.items()}
        got = self.client.ask(self.method, self.path, headers)
        assert got.whole
        seen = [each.method for each in self.origin.s3.seen[before:] if each.raw_path == self.path]
        return ", ".join(seen) or "none"


@pytest.mark.parametrize(("row", "cold", "warm"), rows(), ids=[row for row, _, _ in rows()])
def test_a_read_makes_the_requests_that_the_page_says(
    running: Running, origin: Origin, row: str, cold: str, warm: str
) -> None:
    """Rule: one request at the store where one is enough, and none for what the cache knows."""
    name = "".join(character if character.isalnum() else "-" for character in row.lower()).strip("-")
    with Client(running.endpoint) as client:
        case = Case(origin, client, f"cold-{name}", row)
        if row.endswith("again"):
            case.ask()
        assert case.ask() == cold
        case = Case(origin, client, f"warm-{name}", row)
        case.warm()
        assert case.ask() == warm
    origin.s3.allow_again()


def test_every_read_of_the_page_is_made_here() -> None:
    """Rule: the table and the test have the same rows."""
    assert [row for row, _, _ in rows()] == list(READS)
