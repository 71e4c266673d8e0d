"""What must hold across the ranks of one training run, and would otherwise lose data or hang without an error.

The ranks share the items of an epoch among themselves, so each must deliver its own share, whole, and all must have equally
many batches left. Two things break that silently: a framework that divides the batches among ranks once more, and saved states
that are not of the same step, as a crash between two checkpoints leaves them. The rank with more batches left then waits in an
all-reduce for ever.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import timedelta
from hashlib import sha256
from typing import Any

from torch import distributed

from larder.errors import StateError
from larder.planner import Progress
from larder.torch.places import Ranks

WAIT = 120.0
"""Seconds within which all ranks must load their states."""
_DIVIDERS = {
    ("accelerate", "DataLoaderDispatcher"),
    ("accelerate", "IterableDatasetShard"),
    ("transformers", "IterableDatasetShard"),
}
_loads: Counter[str] = Counter()
"""How many states of each dataset this process has loaded: the n-th of one rank belongs to the n-th of the others."""


def refuse_division(ranks: Ranks) -> None:
    """Raise if the iteration that begins is driven by a wrapper that divides batches among ranks.

    A dataset is told nothing of its loader, but the wrapper is on the call stack: in the training process, and in a worker that
    was forked from it. For workers that are started otherwise this is called when the dataset is sent to them.

    Raises:
        ValueError: it is, and the dataset gives this rank a share already.
    """
    if ranks.world == 1:
        return
    frame = sys._getframe(1).f_back
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if any(package == known for known, _ in _DIVIDERS):
            name = type(frame.f_locals.get("self")).__name__
            if (package, name) in _DIVIDERS:
                raise ValueError(
                    f"{package}'s {name} divides the batches among ranks, but a CachedDataset has done so already: rank "
                    f"{ranks.rank} of {ranks.world} would train on a part of its share, and the rest would be lost. Do not pass "
                    "the DataLoader to accelerator.prepare(), only model and optimizer; or make the dataset with rank=0, world=1"
                )
        frame = frame.f_back


def refuse_disagreement(progress: Progress, batches: int) -> None:
    """Compare a state that was loaded with those of the other ranks; each rank loads one, and all of them call this.

    Only ranks that ``torch.distributed`` knows can be compared. They exchange a few bytes through its key-value store, not by a
    collective, because a rank that never loads a state must be named rather than waited for.

    Args:
        progress: of this rank.
        batches: that it has left in the epoch.

    Raises:
        StateError: they differ, or a rank has loaded none within ``WAIT`` seconds.
    """
    rank, world = progress.rank, progress.world or 1
    if world == 1 or not distributed.is_available() or not distributed.is_initialized():
        return
    if (distributed.get_rank(), distributed.get_world_size()) != (rank, world):
        return  # the user has said other ranks than those that are connected
    store = distributed.distributed_c10d._get_default_store()
    _loads[progress.dataset] += 1
    name = f"larder/state/{progress.dataset[:16]}/{_loads[progress.dataset]}"
    store.set(f"{name}/{rank}", json.dumps(_told(progress, batches)))
    told = [_asked(store, f"{name}/{other}", other) for other in range(world)]
    if any(each != told[0] for each in told):
        raise StateError(_difference(told))


def _told(progress: Progress, batches: int) -> dict[str, Any]:
    """What must be the same on all ranks."""
    state = progress.to_json()
    same = {name: state[name] for name in ("dataset", "seed", "layout", "chunks", "group", "base")}
    return {
        "epoch": progress.epoch,
        "batches": batches,
        "session": sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16],
    }


def _asked(store: Any, key: str, rank: int) -> dict[str, Any]:
    try:
        store.wait([key], timedelta(seconds=WAIT))
    except RuntimeError as error:
        raise StateError(
            f"rank {rank} has not loaded a state within {WAIT:.0f} s; every rank loads one: its own, or the merged one"
        ) from error
    told: dict[str, Any] = json.loads(store.get(key))
    return told


def _difference(told: list[dict[str, Any]]) -> str:
    if len({(each["epoch"], each["batches"]) for each in told}) == 1:
        what = "are of different sessions (seed, layout, world size or an earlier merge)"
    else:
        places = [
            f"rank {rank}: epoch {each['epoch']}, {each['batches']} batches left" for rank, each in enumerate(told)
        ]
        what = f"were not saved at the same step ({'; '.join(places[:8])}{'; ...' if len(places) > 8 else ''})"
    return (
        f"the ranks' states {what}, so some ranks would wait for others for ever at the end of the epoch. Load the states of all "
        "ranks everywhere, merge them with larder.torch.merge_states(states), and load the result in every rank"
    )
