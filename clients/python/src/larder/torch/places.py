"""Which part of the data this process serves: its rank among training processes, its number among a loader's workers."""

from __future__ import annotations

import os
from typing import NamedTuple

from torch import distributed
from torch.utils.data import get_worker_info

from larder.errors import LarderError


class Ranks(NamedTuple):
    """Place of a training process among those that train one model together."""

    rank: int
    world: int


class Worker(NamedTuple):
    """Place of a process among the workers of one `DataLoader`; ``base_seed`` is the same in all of them.

    ``inside`` is false in the training process itself, which is its own only worker when there are no others.
    """

    number: int
    workers: int
    base_seed: int
    inside: bool


def given_ranks(rank: int | None, world: int | None) -> Ranks | None:
    """What the user said, if he said it.

    Raises:
        ValueError: only one of the two, or a rank outside of the world.
    """
    if rank is None and world is None:
        return None
    if rank is None or world is None:
        raise ValueError(f"rank and world go together; got rank={rank}, world={world}")
    if not 0 <= rank < world:
        raise ValueError(f"rank must be at least 0 and less than world; got rank={rank}, world={world}")
    return Ranks(rank, world)


def distributed_ranks() -> Ranks | None:
    """What ``torch.distributed`` says, once it is initialised in this process."""
    if distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    return None


def environment_ranks() -> Ranks:
    """What torchrun and its like put into ``RANK`` and ``WORLD_SIZE``; one process alone without them.

    Raises:
        LarderError: one of them is set without the other, or they are no numbers that fit together.
    """
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world is None:
        return Ranks(0, 1)
    try:
        found = given_ranks(int(rank or ""), int(world or ""))
    except ValueError:
        found = None
    if found is None:
        raise LarderError(
            f"the environment says RANK={rank!r} and WORLD_SIZE={world!r}, which do not fit together; "
            "set both, or pass rank= and world="
        )
    return found


def this_worker() -> Worker:
    """Where this process stands in the loader that it works for."""
    info = get_worker_info()
    if info is None:
        return Worker(0, 1, 0, inside=False)
    return Worker(info.id, info.num_workers, info.seed - info.id, inside=True)
