"""The rank of this training process, as given or as launchers set it in the environment."""

from __future__ import annotations

import os
from typing import NamedTuple

from larder.base.errors import LarderError
from larder.base.options import whole_number


class Ranks(NamedTuple):
    """Rank and world size of a training process."""

    rank: int
    world: int


def given_ranks(rank: int | None, world: int | None) -> Ranks | None:
    """The ranks that the user passed, if any.

    Raises:
        ValueError: only one of the two, or a rank outside of the world.
    """
    if rank is None and world is None:
        return None
    if rank is None or world is None:
        raise ValueError(f"rank and world go together; got rank={rank}, world={world}")
    rank, world = whole_number("rank", rank), whole_number("world", world)
    if not 0 <= rank < world:
        raise ValueError(f"rank must be at least 0 and less than world; got rank={rank}, world={world}")
    return Ranks(rank, world)


def environment_ranks() -> Ranks:
    """The ranks in ``RANK`` and ``WORLD_SIZE``, as torchrun and similar launchers set them; rank 0 of 1 without them.

    Raises:
        LarderError: only one variable is set, or their values do not fit together.
    """
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world is None:
        return Ranks(0, 1)
    try:
        ranks = given_ranks(int(rank or ""), int(world or ""))
    except ValueError:
        ranks = None
    if ranks is None:
        raise LarderError(
            f"RANK={rank!r} and WORLD_SIZE={world!r} do not fit together; set both, or pass rank= and world="
        )
    return ranks
