"""Counts what a loader delivered from a data set of 20 samples, each of which is its own number."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

SAMPLES = 20
READ = 6
"""Samples that are delivered before the state is saved."""


def delivered(samples: Iterable[int]) -> str:
    """``exact``, or how many samples came again and how many never came."""
    counted = Counter(samples)
    assert counted.keys() <= set(range(SAMPLES)), counted
    repeated, missing = counted.total() - len(counted), SAMPLES - len(counted)
    words = [f"{count} {name}" for count, name in ((repeated, "repeated"), (missing, "missing")) if count]
    return ", ".join(words) or "exact"


def attempt(action: Callable[[], str]) -> str:
    """The outcome of the action, or the name of its exception."""
    try:
        return action()
    except Exception as error:  # any exception of a loader is its answer
        return type(error).__name__


def over_ranks(shares: Sequence[Sequence[int]]) -> str:
    """The numbers of samples by rank, and the verdict on them together."""
    return "/".join(str(len(share)) for share in shares) + " " + delivered(chain.from_iterable(shares))


def check(answers: dict[str, str], expected: dict[str, str]) -> None:
    """Print the answers; raise SystemExit if they are not the expected ones."""
    print(json.dumps(answers, indent=1))
    changed = {name: (answers.get(name), expected.get(name)) for name in {*answers, *expected}}
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    if changed:
        raise SystemExit(f"changed (answer, expected): {changed}")
