"""PUT /-/v1/jobs/{job}/importance of a real gateway of two workers, and its effect on the cache (SHADE, Algorithm 1)."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.policies.items.importance import DRAW
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.processes import wait_until
from rig.signed_requests import ClientSigner
from rig.v1 import GWA, Key, Reply, ask
from tests.scored import Part, beat, by_importance, join, planned, put
from tests.stores import query

GWB: Key = ("GWB", "gateway-secret-b")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {"access_key_id": GWB[0], "secret_access_key": GWB[1], "tenant": "b"},
)
PACE = """
[fleet]
heartbeat = "100ms"
[admin]
token = "operators-only"
"""
SOON = 60.0
ITEMS = 100
FIT = 59
"""Items of 10,000 bytes that datasets may be granted of 600 kB."""
SPARE = 6
"""Items for which there may be room at times: somewhat more is evicted than what comes needs, the least important first."""


def settings(origin: FakeOrigin, home: Path) -> Settings:
    """A gateway of two workers with room for a little more than half of the items below."""
    return Settings(origin.endpoint, home / "cache", capacity="600KB", workers=2, credentials=CREDENTIALS, extra=PACE)


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The gateway."""
    home = tmp_path_factory.mktemp("importance")
    with gateway(settings(origin, home), home) as started:
        yield started


@dataclass
class Training:
    """A job on a dataset of 100 items that no other test has."""

    running: Running
    stock: Stock
    job: str

    @property
    def held(self) -> set[int]:
        """The items in the cache."""
        return set(range(ITEMS)) - set(self.stock.missing(self.running))

    def put(self, part: Part | bytes, key: Key | None = GWA) -> Reply:
        """Send a part."""
        return put(self.running, self.job, self.stock.id, part, key)

    def rank(self, part: Part) -> None:
        """Have a part taken, and the dataset kept by importance."""
        reply = self.put(part)
        assert reply.status == 200, reply.body
        wait_until(lambda: by_importance(self.running, self.stock, self.job), SOON, "the order importance")

    def ranked(self, need: float) -> int:
        """Items of this rank in the index."""
        root = self.running.config.parent / "cache"
        return int(query(root, f"SELECT count(*) FROM blobs WHERE rank = {need}")[0][0])

    def read(self, indices: Any) -> None:
        """Read items, in the job's name."""
        self.stock.read(self.running, list(indices), f"job={self.job}&epoch=1")

    def keep(self, wanted: set[int]) -> None:
        """Read items until they are in the cache: one at a time, as more room may be made than those that come together need. A
        read is not stored while room is still being made for it."""

        def kept() -> bool:
            for index in sorted(wanted - self.held):
                self.read([index])
            return wanted <= self.held

        wait_until(kept, SOON, "the items in the cache")


@pytest.fixture
def train(
    origin: FakeOrigin, running: Running, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Training]:
    """Returns a registered job; removes it after the test."""
    name = re.sub("[^A-Za-z0-9._-]", "-", request.node.name)[-100:]
    yield training(running, origin, tmp_path_factory.mktemp("stock"), name)
    ask(running, "DELETE", f"/v1/jobs/{name}")


@pytest.fixture
def alone(origin: FakeOrigin, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Training]:
    """Returns a job on a separate gateway, whose cache holds nothing of other tests."""
    with gateway(settings(origin, tmp_path), tmp_path) as started:
        yield training(started, origin, tmp_path / "stock", request.node.name)


def training(running: Running, origin: FakeOrigin, home: Path, name: str) -> Training:
    """A registered job on a registered dataset."""
    made = stock(origin, home, name, bytes_of(ITEMS, 10_000, name))
    made.register(running, "auto")
    join(running, name, made)
    return Training(running, made, name)


def test_a_full_pool_keeps_what_is_important(alone: Training, origin: FakeOrigin) -> None:
    """Rule: while there is room every item enters; then an item enters only if it is at least as important as the least important
    one, which leaves. An item without a score displaces none."""
    alone.rank(Part(scores={index: (index + 1) / 16 for index in range(80)}))
    assert planned(alone.running, alone.stock)["granted"] // 10_000 == FIT
    alone.keep(set(range(FIT)))
    for index in range(80, ITEMS):
        alone.read([index])
    least = min(alone.held)
    assert least < SPARE
    assert alone.held >= set(range(least, FIT))
    assert len(alone.held) <= FIT + 1
    reads, away = origin.count("GET", "/data/"), set(range(80, 90)) - alone.held
    alone.read(range(80, 90))
    assert origin.count("GET", "/data/") == reads + len(away) > reads + 10 - SPARE
    alone.keep(set(range(60, 80)))
    least = min(alone.held)
    assert least >= 20 - SPARE
    assert alone.held >= {*range(least, FIT), *range(60, 80)}
    alone.read([0])
    alone.read([1])
    assert alone.held >= {*range(least + 2, FIT), *range(60, 80)}
    assert alone.running.metric("larder_importance_refused_items_total") >= 32 - SPARE


def test_what_jobs_say_later_ranks_what_is_here(alone: Training) -> None:
    """Rule: new scores rank the cached items again: those that became unimportant leave first."""
    alone.rank(Part(scores=dict.fromkeys(range(ITEMS), 1.0)))
    alone.keep(set(range(FIT)))
    least = dict.fromkeys(range(40, 50), 0.5)
    part = Part(2, 1, {**least, **dict.fromkeys(range(FIT, ITEMS), 4.0)})
    assert alone.put(part).json == {"sequence": 2, "items": ITEMS}
    wait_until(lambda: alone.ranked(0.5 / DRAW) == len(least), SOON, "the new ranks")
    alone.keep(set(range(FIT, 75)))
    assert not alone.held & set(least)


def test_the_most_needed_of_the_list_are_loaded_ahead(alone: Training, origin: FakeOrigin) -> None:
    """Rule: the most needed items that the epoch draws and that fit are read from the origin ahead and counted; the others are
    not."""
    before = alone.running.metric("larder_importance_prefetched_items_total")
    scores = {index: 1 + index / 16 for index in range(ITEMS)}
    alone.rank(Part(scores=scores))
    drawn = {index: 1 if index < ITEMS - FIT else 3 for index in range(ITEMS) if index % 10}
    assert alone.put(Part(2, 1, {}, drawn)).status == 200
    wanted = set(sorted(drawn, key=lambda index: -100 * drawn[index] - index)[:FIT])
    wait_until(lambda: alone.held == wanted, SOON, "the items that fit")
    wait_until(
        lambda: alone.running.metric("larder_importance_prefetched_items_total") == before + len(wanted),
        SOON,
        "the count",
    )
    assert all(origin.count("GET", alone.stock.path(index)) == 1 for index in wanted)


def test_an_operator_sees_which_tenths_are_read(train: Training) -> None:
    """Rule: the dataset's document has threshold, jobs, ghost list, and by tenths of the items the share of reads and of hits."""
    train.rank(Part(scores={index: 1 + index / 16 for index in range(90)}))
    for _ in range(2):
        train.read(range(80, 90))
    train.read([95])
    found: dict[str, Any] = {}

    def counted() -> bool:
        # What is asserted is of this answer: the next may be another worker's, whose reading is up to a second older.
        headers = {"authorization": "Bearer operators-only"}
        document = ask(train.running, "GET", f"/admin/datasets/{train.stock.id}", key=None, headers=headers).json
        found.update(document["importance"] or {})
        rows = [*found.get("tenths", ()), found.get("unscored", {"reads": 0})]
        return sum(row["reads"] for row in rows) >= 21 and found["threshold"] is not None

    wait_until(counted, SOON, "the reads, and a threshold")
    assert found["jobs"] == {f"a/{train.job}": 1.0}
    assert (found["partial"], found["scored"]) == (True, 90)
    assert [row["reads"] for row in found["tenths"]] == [0] * 8 + [2, 18]
    assert found["tenths"][-1]["read_share"] == pytest.approx(18 / 21, abs=1e-4)
    assert found["unscored"]["reads"] == 1


def test_a_job_that_ends_takes_its_scores_along(train: Training) -> None:
    """Rule: after the last job with scores is removed, the dataset is no longer kept by importance."""
    train.rank(Part(scores={1: 1.0}))
    join(train.running, f"{train.job}-2", train.stock)
    assert ask(train.running, "DELETE", f"/v1/jobs/{train.job}").status == 204

    def back() -> bool:
        beat(train.running, f"{train.job}-2")
        return planned(train.running, train.stock).get("order") == "uniform"

    wait_until(back, SOON, "the order of a dataset without scores")
    assert train.put(Part(2, 1, {2: 1.0})).code == "UnknownJob"
    ask(train.running, "DELETE", f"/v1/jobs/{train.job}-2")


def test_two_jobs_count_together(train: Training) -> None:
    """Rule: the plan names each job with scores and its share of their reads."""
    other = f"{train.job}-2"
    join(train.running, other, train.stock)
    train.rank(Part(scores={1: 1.0}))
    assert put(train.running, other, train.stock.id, Part(scores={2: 3.0})).json == {"sequence": 1, "items": 1}

    def both() -> bool:
        beat(train.running, train.job)
        beat(train.running, other)
        found = planned(train.running, train.stock).get("importance") or {}
        return found.get("jobs") == {train.job: 0.5, other: 0.5}

    wait_until(both, SOON, "the shares of both jobs")
    ask(train.running, "DELETE", f"/v1/jobs/{other}")


def test_the_same_part_again_changes_nothing(train: Training) -> None:
    """Rule: over both workers, a repeated part gets the same answer, and a part on another base 409 with the present base."""
    part = Part(scores={1: 1.0})
    assert [train.put(part).json for _ in range(8)] == [{"sequence": 1, "items": 1}] * 8
    for stale in (Part(3, 2, {1: 2.0}), Part(1, 0, {1: 2.0})):
        reply = train.put(stale)
        assert (reply.status, reply.code, reply.json["sequence"]) == (409, "UnknownBase", 1)
    assert train.put(Part(7, 0, {3: 1.0}, whole=True)).json == {"sequence": 7, "items": 1}


def test_scores_are_their_own_tenants(train: Training) -> None:
    """Rule: another tenant's job is unknown, and an unknown caller is refused."""
    assert (train.put(Part(), GWB).status, train.put(Part(), GWB).code) == (404, "UnknownJob")
    assert train.put(Part(), None).code == "AccessDenied"
    assert train.put(Part(), (GWA[0], "wrong")).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (Part(items=ITEMS + 1).body, "items"),
        (Part(scores={ITEMS: 1.0}).body, "rows"),
        (Part(scores={1: float("nan")}).body, "scores"),
        (Part(scores={1: 1.0}, draws={1: 1}).body[:-4], "body"),
        (b"", "body"),
    ],
    ids=["other-dataset", "out-of-range", "nan", "half", "empty"],
)
def test_a_malformed_part_is_refused_by_its_field(train: Training, body: bytes, field: str) -> None:
    """Rule: an invalid part is refused, naming the field, and changes nothing."""
    reply = train.put(body)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert reply.json["detail"].startswith(f"The part's field {field} ")
    assert train.put(Part(2, 1, {1: 1.0})).json["sequence"] == 0


def test_a_body_that_is_too_long_is_refused(train: Training) -> None:
    """Rule: no more is read than a part of this dataset can have."""
    assert train.put(bytes(100_000)).code == "TooLarge"


def test_a_body_that_breaks_off_changes_nothing(train: Training) -> None:
    """Rule: a client that disconnects within its body changes nothing."""
    path, body = f"/v1/jobs/{train.job}/importance?dataset={train.stock.id}", Part(scores={1: 1.0}).body
    signed = ClientSigner(*GWA).header("PUT", f"{train.running.endpoint}/-{path}", {}, body=body)
    lines = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in signed.headers)
    with socket.create_connection(("127.0.0.1", train.running.port), timeout=30) as sock:
        head = f"PUT /-{path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body[:-3])
    assert train.put(Part(2, 1)).json["sequence"] == 0


def test_what_the_scores_are_about_must_be_known(train: Training, origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: the dataset must be the job's, given by its id, and registered; no other parameter is accepted."""
    running, part = train.running, Part().body
    other = stock(origin, tmp_path, f"{train.job}-other", bytes_of(ITEMS, 100, train.job))
    other.register(running)
    address = f"/v1/jobs/{train.job}/importance"
    for query_, field in (
        (f"dataset={other.id}", "The job "),
        (f"dataset={train.stock.name}", "The parameter dataset must be the"),
        ("", "The parameter dataset "),
        (f"dataset={train.stock.id}&what=1", "Unknown parameter 'what'"),
    ):
        reply = ask(running, "PUT", f"{address}?{query_}", part)
        assert (reply.status, reply.code) == (400, "InvalidRequest")
        assert reply.json["detail"].startswith(field)
    assert ask(running, "DELETE", f"/v1/datasets/{train.stock.name}").status in (200, 204)
    wait_until(
        lambda: (reply := train.put(part)).status != 200 and reply.code == "UnknownDataset",
        SOON,
        "the dataset to be unknown",
    )


def test_a_restart_asks_for_everything_again(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: a restart loses all scores: the job registers again, gets base 0, and sends a whole part."""
    made = stock(origin, tmp_path / "stock", "restarted", bytes_of(ITEMS, 10_000, "restarted"))
    first = Part(scores=dict.fromkeys(range(ITEMS), 1.0))
    with gateway(settings(origin, tmp_path), tmp_path) as before:
        made.register(before, "auto")
        join(before, "train", made)
        assert put(before, "train", made.id, first).status == 200
    with gateway(settings(origin, tmp_path), tmp_path) as running:
        assert put(running, "train", made.id, Part(2, 1, {1: 2.0})).code == "UnknownJob"
        made.register(running, "auto")
        join(running, "train", made)
        reply = put(running, "train", made.id, Part(2, 1, {1: 2.0}))
        assert (reply.status, reply.code, reply.json["sequence"]) == (409, "UnknownBase", 0)
        whole = Part(3, 0, first.scores, whole=True)
        assert put(running, "train", made.id, whole).json == {"sequence": 3, "items": ITEMS}
        wait_until(lambda: by_importance(running, made, "train"), SOON, "the order importance")
