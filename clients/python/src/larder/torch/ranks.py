"""Ranks and workers: the share of this process, and the rules across the ranks of a training run.

Ranks share the items of an epoch, so each must deliver its own share completely, and all must have equally many batches left. Two
mistakes break this silently: a framework that divides the batches among ranks again, and saved states of different steps, which a
crash between two checkpoints leaves behind. Then the rank with more batches left waits in an all-reduce forever.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple

from torch import distributed
from torch.utils.data import get_worker_info

from larder.base.errors import StateError
from larder.base.ranks import Ranks
from larder.planner import Progress

WAIT = 120.0
"""Seconds that a rank waits for the other ranks to load their states."""
_DIVIDING_WRAPPERS = {
    ("accelerate", "DataLoaderDispatcher"),
    ("accelerate", "IterableDatasetShard"),
    ("transformers", "IterableDatasetShard"),
}
_loads: Counter[str] = Counter()
"""States loaded by this process, by dataset: the n-th load of one rank corresponds to the n-th load of the others."""


class Worker(NamedTuple):
    """Place of a process among the workers of a `DataLoader`; ``base_seed`` is the same in all of them.

    ``inside`` is false in the training process, which acts as the only worker if the loader has none.
    """

    number: int
    workers: int
    base_seed: int
    inside: bool


def distributed_ranks() -> Ranks | None:
    """The ranks of ``torch.distributed``, once it is initialised in this process."""
    if distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    return None


def this_worker() -> Worker:
    """This process's place in its loader."""
    info = get_worker_info()
    if info is None:
        return Worker(0, 1, 0, inside=False)
    return Worker(info.id, info.num_workers, info.seed - info.id, inside=True)


def refuse_division(ranks: Ranks) -> None:
    """Refuse to iterate under a wrapper that divides batches among ranks again.

    A dataset does not know its loader, but the wrapper is on the call stack: in the training process, and in a worker that was
    forked from it. For workers started in another way, this is called when the dataset is sent to them.

    Raises:
        ValueError: there is such a wrapper, and the dataset serves only this rank's share already.
    """
    if ranks.world == 1:
        return
    frame = sys._getframe(1).f_back
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if any(package == known for known, _ in _DIVIDING_WRAPPERS):
            name = type(frame.f_locals.get("self")).__name__
            if (package, name) in _DIVIDING_WRAPPERS:
                raise ValueError(
                    f"{package}'s {name} divides the batches among ranks, but a CachedDataset has done so already: rank "
                    f"{ranks.rank} of {ranks.world} would train on a part of its share, and the rest would be lost. Do not pass "
                    "the DataLoader to accelerator.prepare(), only model and optimizer; or make the dataset with rank=0, world=1"
                )
        frame = frame.f_back


def refuse_disagreement(progress: Progress, batches: int) -> None:
    """Compare the loaded state with those of the other ranks. Every rank loads a state and calls this.

    Compares the ranks of ``torch.distributed`` only. They exchange a few bytes through its key-value store rather than by a
    collective, so that a rank that never loads a state is reported instead of blocking the others.

    Args:
        progress: loaded state of this rank.
        batches: batches that it has left in the epoch.

    Raises:
        StateError: the states differ, or a rank has loaded none within ``WAIT`` seconds.
    """
    rank, world = progress.rank, progress.world or 1
    if world == 1 or not distributed.is_available() or not distributed.is_initialized():
        return
    if (distributed.get_rank(), distributed.get_world_size()) != (rank, world):
        return  # the user passed other ranks than the connected ones
    store = distributed.distributed_c10d._get_default_store()
    _loads[progress.dataset] += 1
    name = f"larder/state/{progress.dataset[:16]}/{_loads[progress.dataset]}"
    store.set(f"{name}/{rank}", json.dumps(_fingerprint(progress, batches)))
    states = [_state_of(store, f"{name}/{other}", other) for other in range(world)]
    if any(state != states[0] for state in states):
        raise StateError(_difference(states))


def _fingerprint(progress: Progress, batches: int) -> dict[str, Any]:
    """The part of a state that must be equal on all ranks."""
    state = progress.to_json()
    same = {name: state[name] for name in ("dataset", "seed", "layout", "group", "base")}
    return {
        "epoch": progress.epoch,
        "batches": batches,
        "session": sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16],
    }


def _state_of(store: Any, key: str, rank: int) -> dict[str, Any]:
    try:
        store.wait([key], timedelta(seconds=WAIT))
    except RuntimeError as error:
        raise StateError(
            f"rank {rank} has not loaded a state within {WAIT:.0f} s; every rank loads one: its own, or the merged one"
        ) from error
    state: dict[str, Any] = json.loads(store.get(key))
    return state


def _difference(states: list[dict[str, Any]]) -> str:
    if len({(state["epoch"], state["batches"]) for state in states}) == 1:
        what = "are of different sessions (seed, layout, world size or an earlier merge)"
    else:
        places = [
            f"rank {rank}: epoch {state['epoch']}, {state['batches']} batches left" for rank, state in enumerate(states)
        ]
        what = f"were not saved at the same step ({'; '.join(places[:8])}{'; ...' if len(places) > 8 else ''})"
    return (
        f"the ranks' states {what}, so some ranks would hang at the end of the epoch, waiting for the others. Load the "
        "states of all ranks everywhere, merge them with larder.torch.merge_states(states), and load the result in every rank"
    )
