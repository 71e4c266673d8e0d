"""Runs attacks one by one, each generated from its number, so that findings can be repeated."""

from __future__ import annotations

import random
from collections import Counter

from tests.fuzz.corpus import any_request, strange
from tests.fuzz.mutations import mutate, pieces_of
from tests.fuzz.repeated import repeat
from tests.fuzz.rereadings import reread
from tests.fuzz.world import Broken, World

INSPECT_EVERY = 25
REREAD_EVERY = 4
REPEAT_EVERY = 4


def attack(world: World, number: int) -> list[int]:
    """One request, mutated, signed and then added to, or after others of its shape; returns the statuses of the answer.

    Raises:
        Broken: something that must hold did not.
    """
    rng = random.Random(number)
    other = reread if number % REREAD_EVERY == 0 else repeat if number % REPEAT_EVERY == 1 else None
    if other is not None:
        try:
            return other(world, rng)
        except Broken as broken:
            raise Broken(f"attack {number}: {broken}") from None
    odd = rng.random() < 0.4
    data = strange(world, rng) if odd else any_request(world, rng)
    if rng.random() < (0.1 if odd else 0.95):
        data = mutate(data, rng, world.stranger)
    try:
        return world.judge(world.send(pieces_of(data, rng), reset=rng.random() < 0.05))
    except Broken as broken:
        raise Broken(f"attack {number}: {broken}; sent: {data[:1500]!r}") from None


def campaign(world: World, first: int, count: int) -> Counter[int]:
    """Run a number of attacks and count the statuses of the answers (0: no answer).

    Raises:
        Broken: an invariant was violated.
    """
    statuses: Counter[int] = Counter()
    for number in range(first, first + count):
        statuses.update(attack(world, number) or [0])
        if number % INSPECT_EVERY == 0:
            _inspect(world, number)
    _inspect(world, first + count)
    return statuses


def _inspect(world: World, number: int) -> None:
    try:
        world.inspect()
    except Broken as broken:
        raise Broken(f"one of the {INSPECT_EVERY} attacks before {number}: {broken}") from None
