"""How many batches an epoch has: equally many on every rank, since distributed training waits for the slowest.

The rank with the largest share has ``ceil(items / world)`` items, and the smallest share has at most one less. A rank's items
fill numbered *slots*: a full batch takes ``batch_size`` slots on every rank, whether an item of the share, a repetition or
nothing fills each. So ranks that delivered equally many batches have used equally many slots, and have equally many batches left,
whatever each of them could read.

`batches_left` is the only place that decides this number. It uses the whole epoch and the used slots, and needs no share, order
or workers.
"""

from larder.base.errors import UnevenRanks

TAILS = ("short", "drop", "pad")


def share_size(items: int, rank: int, world: int) -> int:
    """Number of the ``items`` that go to this rank."""
    return max(0, (items - rank + world - 1) // world)


def slots_left(items: int, world: int, *, used: int, batch_size: int, tail: str) -> int:
    """Number of slots that the batches of an epoch still take on each rank; arguments as for `batches_left`."""
    if tail == "drop":
        left = max(0, items // world - used)
        return left - left % batch_size
    return max(0, share_size(items, 0, world) - used)


def batches_left(items: int, world: int, *, used: int, batch_size: int, tail: str) -> int:
    """Number of batches that an epoch still has on each rank.

    Args:
        items: items of the epoch, not counting those that earlier sessions delivered under another number of ranks.
        world: number of ranks.
        used: slots that each rank has used.
        batch_size: items of a full batch.
        tail: as in ``EpochPlan``.
    """
    return -(-slots_left(items, world, used=used, batch_size=batch_size, tail=tail) // batch_size)


def refuse_uneven(items: int, world: int, batch_size: int, tail: str, *, remedy: str = "") -> None:
    """Refuse an epoch whose items cannot be divided so that each comes once and every rank has equally many batches.

    Args:
        items: items of a whole epoch.
        world: number of ranks.
        batch_size: items of a full batch.
        tail: as in ``EpochPlan``.
        remedy: what the user can change, if not ``tail`` and ``batch_size``.

    Raises:
        UnevenRanks: a rank would have a batch without an item.
    """
    batches = batches_left(items, world, used=0, batch_size=batch_size, tail=tail)
    if tail != "short" or items // world >= batches:
        return
    larger = ", batch_size=2 or more" if items >= world else ", fewer ranks"
    raise UnevenRanks(
        f"{items} items cannot be shared by {world} ranks in equally many batches of {batch_size} that have each item once, "
        f"so some ranks would wait for the others at the end of an epoch: choose "
        f"""{remedy or f'tail="pad" (at most {world - 1} items come again), tail="drop" (they are left out){larger}'}"""
    )
