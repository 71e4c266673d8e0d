"""Scans beside other readers of one prefix: who is split off, what each group is judged by, and the bounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.streams import groups
from gateway.policies.streams.groups import SCANS, Courses, ScanningClients, order_of, pool_of_scan
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.tree import AccessStreamTree
from gateway.policies.streams.zone import NodeStreams, stream_report, zone_streams

PREFIX = "data/train/"
STREAM, SCAN = f"b/{PREFIX}", f"{SCANS}b/{PREFIX}"
SCANNER = 1000
"""The first client of a scan; those of a training are below."""


def files(count: int) -> list[str]:
    """Keys in listing order."""
    return [f"{PREFIX}{number:05d}" for number in range(count)]


def epochs(keys: list[str], draw: random.Random) -> Iterator[str]:
    """A training: all keys in a new order per epoch."""
    while True:
        yield from draw.sample(keys, len(keys))


def skewed(keys: list[str], draw: random.Random) -> Iterator[str]:
    """Queries: a few keys far more often than others."""
    while True:
        yield keys[7919 * min(int(draw.paretovariate(0.5)), len(keys)) % len(keys)]


class Prefix:
    """A tree whose clients read one prefix at the same time."""

    def __init__(self, seed: int = 1) -> None:
        self.tree = AccessStreamTree()
        self.draw = random.Random(seed)
        self.now = 0.0

    def read(self, key: str, client: int) -> None:
        """One read, ten milliseconds after the last."""
        self.now += 0.01
        self.tree.record("b", key, 0, 1, self.now, client, False, 100)

    def pattern(self, name: str) -> Pattern | None:
        """The pattern of a stream; ``None`` without one."""
        stream = self.tree.named(name)
        return None if stream is None else stream.pattern

    def looks(
        self, others: Iterator[str], scan: Iterable[str], clients: int, scanners: int
    ) -> list[tuple[Pattern | None, Pattern | None]]:
        """Both patterns after each 100 reads, while both read, one each in turn."""
        patterns = []
        for at, key in enumerate(scan):
            self.read(key, SCANNER + at % scanners)
            self.read(next(others), self.draw.randrange(clients))
            if at % 50 == 49:
                patterns.append((self.pattern(STREAM), self.pattern(SCAN)))
        return patterns


@pytest.mark.parametrize(("clients", "scanners"), [(1, 1), (8, 1), (8, 4), (16, 10)])
@pytest.mark.parametrize(("order", "pattern"), [(epochs, Pattern.RANDOM), (skewed, Pattern.SKEWED)])
def test_a_scan_and_others_at_once_are_both_recognised(
    order: Callable[[list[str], random.Random], Iterator[str]], pattern: Pattern, clients: int, scanners: int
) -> None:
    """Rule: of 60 looks at a prefix that is scanned while others read it, at least 50 know the pattern of each."""
    prefix, keys = Prefix(), files(3000)
    patterns = prefix.looks(order(keys, prefix.draw), keys, clients, scanners)
    assert len(patterns) == 60
    assert sum(own is pattern for own, _ in patterns) >= 50
    assert sum(scan is Pattern.SEQUENTIAL for _, scan in patterns) >= 50


def test_a_training_keeps_its_pattern_after_the_scan_has_ended() -> None:
    """Rule: once the scan has ended, the first look, and each after it, knows the training."""
    prefix, keys = Prefix(), files(1500)
    training = epochs(keys, prefix.draw)
    prefix.looks(training, keys, 8, 2)
    for at in range(2000):
        prefix.read(next(training), at % 8)
        assert prefix.pattern(STREAM) is Pattern.RANDOM


def test_a_training_that_ran_before_keeps_its_statistics() -> None:
    """Rule: a stream that clients have read long before a scan joins goes on with its names and counts."""
    prefix, keys = Prefix(), files(1000)
    training = epochs(keys, prefix.draw)
    for at in range(3000):
        prefix.read(next(training), at % 8)
    before = prefix.tree.named(STREAM)
    assert before is not None
    prefix.looks(training, keys[:300], 8, 1)
    assert prefix.pattern(SCAN) is Pattern.SEQUENTIAL
    assert prefix.tree.named(STREAM) is before


def test_reads_of_a_scan_count_among_those_of_its_prefix() -> None:
    """Rule: what the prefix's pool holds serves the scan too, so its reads count there, once."""
    prefix, keys = Prefix(), files(1000)
    training = epochs(keys, prefix.draw)
    for at in range(2000):
        prefix.read(next(training), at % 8)
    stream = prefix.tree.named(STREAM)
    assert stream is not None
    accesses = stream.accesses
    for key in keys:
        prefix.read(key, SCANNER)
    assert prefix.tree.named(STREAM) is stream
    assert stream.accesses == accesses + len(keys)
    assert stream.bytes == 100 * stream.accesses


def test_clients_that_all_scan_stay_one_stream() -> None:
    """Rule: a prefix that all clients read in order is sequential; none of them is split off."""
    prefix, keys = Prefix(), files(2000)
    for at, key in enumerate(keys):
        prefix.read(key, SCANNER + at % 4)
    assert [stream.name for stream in prefix.tree.streams()] == [STREAM]
    assert prefix.pattern(STREAM) is Pattern.SEQUENTIAL


def test_a_client_that_stops_scanning_returns() -> None:
    """Rule: a scanning client whose last 16 children are out of order is one of the others again."""
    prefix, keys = Prefix(), files(1000)
    training = epochs(keys, prefix.draw)
    prefix.looks(training, keys[:500], 4, 1)
    assert prefix.tree.scanning.bucket_of("b", keys[0], SCANNER) != "b"
    for key in itertools.islice(training, 2 * groups.JUDGED):
        prefix.read(key, SCANNER)
    assert prefix.tree.scanning.bucket_of("b", keys[0], SCANNER) == "b"


@given(st.lists(st.integers(0, 9999), min_size=16, max_size=16, unique=True), st.randoms(use_true_random=False))
def test_a_client_is_in_order_only_with_a_rho_above_nine_tenths(numbers: list[int], draw: random.Random) -> None:
    """Rule: 16 sorted children are in order, wherever they are; reversed ones are not, nor any with a rho of 0.9 or less."""
    names = [f"{number:04}" for number in sorted(numbers)]
    assert in_order(names)
    assert not in_order(names[::-1])
    mixed = draw.sample(names, len(names))
    assert not in_order(mixed) or order_of(mixed) > 0.9


def in_order(names: list[str]) -> bool:
    """Whether a client that reads these children is in order with the last of them."""
    courses = Courses()
    return [courses.in_order(1, name) for name in names][-1]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=500), st.randoms(use_true_random=False))
def test_any_mix_of_scans_and_others_is_counted_once(turns: list[tuple[int, bool]], draw: random.Random) -> None:
    """Rule: however scans and random reads alternate, each read is at most one access of the prefix, there is at most one stream
    of scans, and all of its reads are among the prefix's."""
    tree, keys, reads = AccessStreamTree(window=20), files(200), 0
    places = dict.fromkeys(range(6), 0)
    for at, (client, scans) in enumerate(turns):
        for _ in range(3):
            places[client] = (places[client] + 1) % len(keys)
            key = keys[places[client]] if scans and client < 3 else draw.choice(keys)
            tree.record("b", key, 0, 1, float(at), client, False, 1)
            reads += 1
    named = {stream.name: stream for stream in tree.streams()}
    assert named.keys() <= {STREAM, SCAN}
    if STREAM in named:
        assert named[STREAM].accesses <= reads
    assert SCAN not in named or STREAM in named


def test_scanning_clients_are_bounded() -> None:
    """Rule: the clients read last are remembered, each with its last prefixes, and a wider prefix replaces those below it."""
    clients = ScanningClients()
    for client in range(2 * groups.MOST_CLIENTS):
        clients.add("b", PREFIX, client)
    last = 2 * groups.MOST_CLIENTS - 1
    assert [clients.bucket_of("b", f"{PREFIX}x", client) for client in (0, last)] == ["b", f"{SCANS}b"]
    for number in range(2 * groups.MOST_PLACES):
        clients.add("b", f"{number}/", last)
    assert clients.bucket_of("b", "0/x", last) == "b"
    assert clients.bucket_of("b", f"{2 * groups.MOST_PLACES - 1}/x", last) == f"{SCANS}b"
    clients.add("b", "p/q/", 7)
    clients.add("b", "p/", 7)
    assert {clients.bucket_of("b", key, 7) for key in ("p/q/x", "p/x")} == {f"{SCANS}b"}
    assert clients.bucket_of("other", "p/x", 7) == "other"


def test_only_scans_beside_others_have_a_pool_by_name() -> None:
    """Rule: an object enters the pool of its key, except one that was loaded ahead of a scan beside others."""
    assert pool_of_scan(SCAN) == f"stream:{SCAN}"
    assert pool_of_scan(STREAM) == ""


def test_gateways_that_see_parts_of_the_reads_agree() -> None:
    """Rule: a training through two gateways and a scan through one of them are the same two streams for the fleet."""
    gateways, keys = [Prefix(), Prefix(2)], files(2000)
    training = epochs(keys, random.Random(3))
    for at, key in enumerate(keys):
        gateways[0].read(key, SCANNER)
        gateways[at % 2].read(next(training), at % 8)
    reports = {
        str(number): NodeStreams(
            {stream.name: stream_report(stream, stream.pattern, gateway.now) for stream in gateway.tree.streams()}
        )
        for number, gateway in enumerate(gateways)
    }
    zone = zone_streams(reports)
    assert {name: stream.seen.pattern for name, stream in zone.items()} == {
        STREAM: Pattern.RANDOM,
        SCAN: Pattern.SEQUENTIAL,
    }
    assert zone[STREAM].seen_by == ("0", "1")
    assert zone[SCAN].seen_by == ("0",)
