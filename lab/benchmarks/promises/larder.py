"""Larder's loader, asked what the scripts beside this module ask of others: ``python -m lab.benchmarks.promises.larder``."""

import itertools
from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from lab.benchmarks.promises.counts import READ, SAMPLES, attempt, check, delivered, over_ranks
from larder.testing import MemorySource
from larder.torch import CachedDataset, watch

EXPECTED = {
    "3 ranks": "UnevenRanks",
    "3 ranks, tail=pad": "7/7/7 1 repeated",
    "3 ranks, tail=drop": "6/6/6 2 missing",
    "the same": "exact",
    "3 workers instead of 2": "exact",
    "no workers instead of 2": "exact",
    "2 ranks instead of 1": "exact",
    "another seed": "exact",
    "at the end": f"{SAMPLES} of {SAMPLES}",
}


def _dataset(seed: int = 1, rank: int = 0, ranks: int = 1, **how: Any) -> CachedDataset:
    source = MemorySource(SAMPLES)
    return CachedDataset("memory:", "numbers", batch_size=1, source=source, seed=seed, rank=rank, world=ranks, **how)


def _loader(workers: int = 2, **how: Any) -> Any:
    return watch(DataLoader(_dataset(**how), batch_size=None, num_workers=workers))


def _read(batches: Iterable[Any]) -> list[int]:
    return [int(item) for batch in batches for item in batch]


def _resumed(state: dict[str, Any], workers: int = 2, **how: Any) -> list[int]:
    after = _loader(workers, **how)
    after.load_state_dict(state)
    return _read(after)


def _three(**how: Any) -> str:
    return attempt(lambda: over_ranks([_read(_dataset(rank=rank, ranks=3, **how)) for rank in range(3)]))


def answers() -> dict[str, str]:
    """The outcome of each test."""
    before, whole = _loader(), _loader()
    first = _read(itertools.islice(before, READ))
    state = before.state_dict()
    _read(whole)
    two = [_resumed(state, 0, rank=rank, ranks=2) for rank in range(2)]
    return {
        "3 ranks": _three(),
        "3 ranks, tail=pad": _three(tail="pad"),
        "3 ranks, tail=drop": _three(tail="drop"),
        "the same": delivered(first + _resumed(state)),
        "3 workers instead of 2": attempt(lambda: delivered(first + _resumed(state, 3))),
        "no workers instead of 2": attempt(lambda: delivered(first + _resumed(state, 0))),
        "2 ranks instead of 1": delivered(first + two[0] + two[1]),
        "another seed": delivered(first + _resumed(state, seed=2)),
        "at the end": f"{len(_resumed(whole.state_dict()))} of {SAMPLES}",
    }


if __name__ == "__main__":
    check(answers(), EXPECTED)
