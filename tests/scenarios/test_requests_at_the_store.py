"""The requests that reads make at the store: the table in docs/s3-compatibility.md, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rig.clients import Client
from rig.gateways import Running, Settings, gateway
from rig.origin import ALICE, BOB
from rig.origin_faults import Refuse
from rig.world import MIB, Origin, content, credentials, eventually

PAGE = Path(__file__).parents[2] / "docs/s3-compatibility.md"
SIZE = 9 * MIB
LARGE = f"bytes=0-{MIB - 1}"
OTHER = '"0123456789abcdef0123456789abcdef"'
SUFFIX = f"bytes=-{8 * MIB + 1}"
ETAG = "the ETag"
ABOUT = ("missing", "refused", "changed", "failing", "redirected", "empty", "not to be kept")
"""What a row says of the object after its last comma."""
STATES = ("cold", "warm", "stale", "held")
Row = tuple[str, str, str]
READS: dict[str, tuple[str, dict[str, str]]] = {
    "GET": ("GET", {}),
    "HEAD": ("HEAD", {}),
    "HEAD again": ("HEAD", {}),
    "range, small": ("GET", {"Range": "bytes=100-999"}),
    "range, large": ("GET", {"Range": LARGE}),
    "range, to the end": ("GET", {"Range": f"bytes={MIB + 5}-"}),
    "range, of a large suffix": ("GET", {"Range": SUFFIX}),
    "range beyond the end": ("GET", {"Range": f"bytes={SIZE}-"}),
    "If-None-Match, the object's ETag": ("GET", {"If-None-Match": ETAG}),
    "If-None-Match, another ETag": ("GET", {"If-None-Match": OTHER}),
    "If-Match, another ETag": ("GET", {"If-Match": OTHER}),
    "range, If-Match": ("GET", {"Range": LARGE, "If-Match": ETAG}),
    "no-cache": ("GET", {"Cache-Control": "no-cache"}),
    "GET, versionId": ("GET?versionId=null", {}),
    "GET, partNumber": ("GET?partNumber=1", {}),
    "GET, response-content-type": ("GET?response-content-type=text%2Fplain", {}),
    "GET, missing": ("GET", {}),
    "HEAD, missing": ("HEAD", {}),
    "range, missing": ("GET", {"Range": LARGE}),
    "range, of a large suffix, missing": ("GET", {"Range": SUFFIX}),
    "If-None-Match, missing": ("GET", {"If-None-Match": OTHER}),
    "GET, refused": ("GET", {}),
    "HEAD, refused": ("HEAD", {}),
    "range, small, refused": ("GET", {"Range": "bytes=0-9"}),
    "range, refused": ("GET", {"Range": LARGE}),
    "range, of a large suffix, refused": ("GET", {"Range": SUFFIX}),
    "If-None-Match, refused": ("GET", {"If-None-Match": OTHER}),
    "If-Match, refused": ("GET", {"If-Match": ETAG}),
    "no-cache, refused": ("GET", {"Cache-Control": "no-cache"}),
    "HEAD, partNumber, refused": ("HEAD?partNumber=1", {}),
    "GET, changed": ("GET", {}),
    "HEAD, changed": ("HEAD", {}),
    "range, changed": ("GET", {"Range": LARGE}),
    "GET, failing": ("GET", {}),
    "HEAD, failing": ("HEAD", {}),
    "range, failing": ("GET", {"Range": LARGE}),
    "GET, redirected": ("GET", {}),
    "HEAD, redirected": ("HEAD", {}),
    "GET, empty": ("GET", {}),
    "range, empty": ("GET", {"Range": LARGE}),
    "GET, not to be kept": ("GET", {}),
    "range, not to be kept": ("GET", {"Range": f"bytes=100000-{MIB + 99}"}),
    "HEAD, not to be kept": ("HEAD", {}),
    "HEAD, no-cache, not to be kept": ("HEAD", {"Cache-Control": "no-cache"}),
    "HEAD, If-Match, not to be kept": ("HEAD", {"If-Match": OTHER}),
    "GET by a page (Origin)": ("GET", {"Origin": "https://page.example"}),
    "GET, expected owner": ("GET", {"x-amz-expected-bucket-owner": "123456789012"}),
    "GET, requester pays": ("GET", {"x-amz-request-payer": "requester"}),
}


@cache
def _rest() -> bytes:
    return content(SIZE)


def body_of(name: str) -> bytes:
    """An object's bytes. No two blocks of one object are equal, and those of others differ only in the first."""
    tag = content(64, name)
    return tag + _rest()[len(tag) :]


def rows() -> list[Row]:
    """The cells of the table: read, state of the cache, and requests. A line has all reads that make the same requests."""
    table = PAGE.read_text().partition("<!-- requests -->")[2].partition("<!-- end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [
        (read, state, said)
        for reads, *counts in cells
        for read in reads.split("; ")
        for state, said in zip(STATES, counts, strict=True)
    ]


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with one worker and two tenants, which nobody else uses."""
    settings = Settings(
        origin.endpoint,
        tmp_path_factory.mktemp("cache"),
        credentials=credentials("a", "b"),
        rules=({"match": "stale-*/**", "freshness": "always"},),
    )
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield running


class Case:
    """One cell: an object in a bucket of its own, and the client that reads it."""

    def __init__(self, origin: Origin, running: Running, row: str, state: str) -> None:
        name = "".join(character if character.isalnum() else "-" for character in row.lower()).strip("-")
        self.bucket = f"{state}-{name}"
        self.origin, self.row, self.state = origin, row, state
        self.path = f"/{self.bucket}/k"
        self.kind = next((kind for kind in ABOUT if row.endswith(f", {kind}")), "")
        asked, self.headers = READS[row]
        self.method, _, self.query = asked.partition("?")
        letter = "b" if state == "held" else "a"
        self.reader = Client(running.endpoint, f"GW{letter.upper()}", f"gateway-secret-{letter}")
        body = b"" if self.kind == "empty" else body_of(self.path)
        kept = [("Cache-Control", "no-store")] if self.kind == "not to be kept" else []
        self.etag = origin.s3.put(self.bucket, "k", body, kept).etag
        origin.s3.buckets.pages[self.bucket] = self.headers.get("Origin", "")

    def prepare(self, owner: Client) -> None:
        """Bring the cache into the state of the column, and then the object into that of the row."""
        known = self.state == "warm"
        if known:
            self._happen()
        if self.state != "cold":
            for _ in range(2):
                owner.get(self.path)
            if self.kind not in ("missing", "refused", "failing", "redirected", "not to be kept") or not known:
                self._await_hit(owner)
            learned = self.query.startswith(("partNumber", "response-")) and not self.kind
            if learned or "Origin" in self.headers or "x-amz-expected-bucket-owner" in self.headers:
                self.ask(owner)  # the first of its bucket
        if not known:
            self._happen()
        self.reader.get("/other/k")  # the store has just accepted the key

    def _await_hit(self, owner: Client) -> None:
        if self.kind != "not to be kept":
            eventually(lambda: owner.get(self.path).cache, lambda cache: cache.startswith("HIT"), "a hit")

    def _happen(self) -> None:
        s3 = self.origin.s3
        match self.kind:
            case "missing":
                s3.delete(self.bucket, "k")
            case "refused":
                s3.deny((BOB if self.state == "held" else ALICE).access_key_id, f"{self.bucket}/*")
            case "changed":
                s3.put(self.bucket, "k", body_of("another"))
            case "failing":
                s3.inject(Refuse(path=self.path, status=503, code="SlowDown", times=99))
            case "redirected":
                s3.inject(Refuse(path=self.path, status=301, code="PermanentRedirect", times=99))

    def ask(self, reader: Client | None = None) -> str:
        """Read, and name the requests that the store saw."""
        before = len(self.origin.s3.seen)
        headers = {name: self.etag if value == ETAG else value for name, value in self.headers.items()}
        got = (reader or self.reader).ask(
            self.method, f"{self.path}?{self.query}" if self.query else self.path, headers
        )
        assert got.whole
        seen = [each.method for each in self.origin.s3.seen[before:] if each.raw_path == self.path]
        return ", ".join(seen) or "none"


@pytest.mark.parametrize(("row", "state", "said"), rows(), ids=[f"{row}-{state}" for row, state, _ in rows()])
def test_a_read_makes_the_requests_that_the_page_says(
    running: Running, origin: Origin, row: str, state: str, said: str
) -> None:
    """Rule: one request at the store where one is enough, and none for what the cache knows."""
    with Client(running.endpoint, "GWA", "gateway-secret-a") as owner:
        case = Case(origin, running, row, state)
        try:
            case.prepare(owner)
            if row.endswith("again"):
                case.ask()
            assert case.ask() == said
        finally:
            case.reader.close()
            origin.s3.allow_again()
            origin.heal()


@pytest.mark.parametrize("other", [False, True], ids=["the same keys", "other keys"])
@pytest.mark.parametrize("kind", ["", "refused", "missing", "changed"])
@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=0-9"}, {"Range": LARGE}], ids=["whole", "small", "large"])
def test_a_read_after_a_head_makes_one_request(
    running: Running, origin: Origin, headers: dict[str, str], kind: str, other: bool
) -> None:
    """Rule: what only a HEAD has told, past its freshness or to other keys, is confirmed by the GET of the bytes."""
    name = f"{'held' if other else 'stale'}-head-{kind}-{'-'.join(headers.values()).strip('bytes=')}"
    path = f"/{name}/k"
    origin.put(path, body_of(path))
    keys = [("GWA", "gateway-secret-a"), ("GWB", "gateway-secret-b")]
    with Client(running.endpoint, *keys[0]) as owner, Client(running.endpoint, *keys[other]) as reader:
        assert owner.ask("HEAD", path).status == 200
        if kind == "refused":
            origin.s3.deny((BOB if other else ALICE).access_key_id, f"{name}/*")
        elif kind == "missing":
            origin.s3.delete(name, "k")
        elif kind == "changed":
            origin.put(path, body_of("another"))
        before = len(origin.s3.seen)
        got = reader.ask("GET", path, headers)
        origin.s3.allow_again()
    assert got.status == {"refused": 403, "missing": 404}.get(kind, 206 if headers else 200)
    assert [seen.method for seen in origin.s3.seen[before:] if seen.raw_path == path] == ["GET"]


def test_every_read_of_the_page_is_made_here() -> None:
    """Rule: the table and the test have the same reads, and the table each once."""
    assert sorted(row for row, state, _ in rows() if state == STATES[0]) == sorted(READS)
