"""Access profiles: what clients read, when, and how the store answers meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.policies.reads.rules import Caching

BLOCK = 1000
"""Bytes of a block."""
SMALL = 100
"""Bytes of a small object."""
PACE = 0.05
"""Seconds between two reads of a client."""


class ProfileRead(NamedTuple):
    """One read of one block of an object, at a time in seconds."""

    time: float
    client: int
    key: str
    block: int = 0


@dataclass(frozen=True)
class Profile:
    """Reads of a store, and how it answers.

    Attributes:
        objects: bytes of each object by key.
        reads: in the order of time.
        latency: seconds of a load, and of a listing.
        capacity: blocks that the cache holds.
        listing: whether listings are answered.
        failing: seconds between which all loads fail.
        withdrawn: seconds after which the reader's key is unknown.
        rules: in force, by the second from which on.
        rooms: bytes of the pools of streams, by the second from which on.
    """

    objects: Mapping[str, int]
    reads: Sequence[ProfileRead]
    latency: float = 0.1
    capacity: int = 100_000
    listing: bool = True
    failing: tuple[float, float] = (0.0, 0.0)
    withdrawn: float = 1e9
    rules: Mapping[float, Sequence[Caching]] = field(default_factory=dict)
    rooms: Mapping[float, Mapping[str, int]] = field(default_factory=dict)


def _small(names: Sequence[str]) -> dict[str, int]:
    return dict.fromkeys(names, SMALL)


def _reads(names: Sequence[str], client: int = 1, start: float = 0.0, pace: float = PACE) -> list[ProfileRead]:
    return [ProfileRead(start + at * pace, client, name) for at, name in enumerate(names)]


def _blocks(key: str, blocks: Sequence[int], start: float = 0.0) -> list[ProfileRead]:
    return [ProfileRead(start + at * PACE, 1, key, block) for at, block in enumerate(blocks)]


def _together(*clients: list[ProfileRead]) -> list[ProfileRead]:
    return sorted(read for reads in clients for read in reads)


def trainings() -> Iterator[tuple[str, Profile]]:
    """Profiles of random streams, which are loaded whole."""
    drawn = random.Random(31)
    names = [f"train/{number:03}" for number in range(100)]
    epochs = [name for _ in range(2) for name in drawn.sample(names, len(names))]
    plenty, size = {"b/train/": 10**9}, SMALL * len(names)
    training = Profile(_small(names), _reads(epochs), rooms={0.0: plenty})
    yield "training", training
    yield "training, slow store", replace(training, latency=2.0)
    yield "training, full cache", replace(training, capacity=60, rooms={0.0: {"b/train/": 60 * SMALL}})
    growing = {0.0: {"b/train/": size // 4}, 4.0: {"b/train/": 2 * size}}
    yield "training, a pool that grows", replace(training, rooms=growing)
    yield "training, a pool that goes", replace(training, rooms={0.0: plenty, 3.0: {}})
    yield "training, overload", replace(training, failing=(2.0, 5.0))
    yield "training, withdrawn", replace(training, withdrawn=3.0)
    yield "training, listing refused", replace(training, listing=False)
    yield (
        "training, forbidden by a rule",
        replace(training, rules={3.0: [Caching(match="b/train/0[3-7]*", cache=False)]}),
    )
    half = [name for _ in range(5) for name in drawn.sample(names[:40], 40)]
    random_rule = {0.0: [Caching(match="b/**", pattern="random")]}
    yield "training, most is never read", replace(training, reads=_reads(half), rules=random_rule)
    blocks = [block for _ in range(2) for block in drawn.sample(range(80), 80)]
    yield (
        "training, one large object",
        Profile({"large": 80 * BLOCK}, _blocks("large", blocks), rooms={0.0: {"b/large": 10**9}}),
    )
    other = [f"more/{number:03}" for number in range(100)]
    both = _together(_reads(epochs), _reads([name.replace("train", "more") for name in reversed(epochs)], 2, 0.02))
    rooms = {0.0: {**plenty, "b/more/": 10**9}}
    yield "two trainings", Profile(_small([*names, *other]), both, latency=0.3, rooms=rooms)
    large = {f"train/{number:03}": (4 * BLOCK if number % 9 == 0 else SMALL) for number in range(100)}
    yield "training, some objects are large", replace(training, objects=large)


def profiles() -> Iterator[tuple[str, Profile]]:
    """All profiles, by name."""
    yield from trainings()
    drawn = random.Random(29)
    names = [f"scan/{number:04}" for number in range(160)]
    scan = Profile(_small(names), _reads(names[:120]))
    yield "sequential", scan
    yield "strided", replace(scan, reads=_reads(names[::3]))
    yield "random", replace(scan, reads=_reads(drawn.sample(names, 120)))
    weights = [1 / (at + 1) for at in range(len(names))]
    yield "skewed", replace(scan, reads=_reads(drawn.choices(names, weights, k=150)))
    apart = (_reads(names[first : first + 60], client, client * 0.01) for client, first in enumerate((0, 50, 95)))
    yield "several readers", replace(scan, reads=_together(*apart))
    near = sorted(range(120), key=lambda at: at + drawn.uniform(0, 6))
    yield "threads out of order", replace(scan, reads=_reads([names[at] for at in near]))
    yield "ends early", replace(scan, reads=_reads([*names[:45], *drawn.sample(names[60:], 80)]))
    yield (
        "begins again",
        replace(scan, objects=_small(names[:60]), reads=_reads([*names[:60], *names[:60]]), capacity=40),
    )
    yield "slow store", replace(scan, latency=2.0)
    yield "full cache", replace(scan, capacity=3)
    yield "overload", replace(scan, failing=(1.5, 4.0))
    yield "withdrawn", replace(scan, withdrawn=2.6)
    yield "listing refused", replace(scan, listing=False, reads=_reads([*names[:50], *names[:40]]), capacity=30)
    yield "forbidden by a rule", replace(scan, rules={2.5: [Caching(match="b/scan/**", pattern="off")]})
    yield "said to be random", replace(scan, rules={2.5: [Caching(match="b/scan/**", pattern="random")]})
    yield "large object", Profile({"large": 60 * BLOCK}, _blocks("large", range(60)))
    files = [f"files/{number}" for number in range(6)]
    runs = [read for at, key in enumerate(files) for read in _blocks(key, range(9), at * 0.5)]
    yield "short objects", Profile(dict.fromkeys(files, 9 * BLOCK), runs)
    many = [f"{number * 7 % 300:03}/file" for number in range(300)]
    bursts = [read for at, key in enumerate(many) for read in _blocks(key, range(4), at * 0.25)]
    yield "more than may wait", Profile(dict.fromkeys(many, 9 * BLOCK), bursts, latency=100.0)
    months = [f"icoads/{number:03}" for number in range(60)]
    places = _small([f"{month}/{place}.csv" for month in months for place in range(4)])
    yield "one place of each folder", Profile(places, _reads([f"{month}/2.csv" for month in months[:50]]))
    both = [f"{month}/{place}.csv" for month in months[:50] for place in (1, 3)]
    yield "two places of each folder", Profile(places, _reads(both))
    classes = [f"classes/{at // 5:03}/{at:04}" for at in range(200)]
    yield "class folders", Profile(_small(classes), _reads(classes[:150]))
    mixed = _small([*names[:60], *(f"scan/{number:04}-more/x" for number in range(60))])
    yield "folders beside objects", Profile(mixed, _reads(names[:50]))
    firsts = {f"tensors/{number:03}/part": 3 * BLOCK for number in range(60)}
    yield "first blocks of large objects", Profile(firsts, _reads(list(firsts)[:45]))
    prefixes = [[f"many{prefix}/{number:03}" for number in range(40)] for prefix in range(8)]
    sides = (_reads(below, client, client * 0.003) for client, below in enumerate(prefixes))
    yield (
        "many streams and a slow store",
        Profile(_small([name for below in prefixes for name in below]), _together(*sides), latency=0.3),
    )
