#!/usr/bin/env bash
# torchdata's StatefulDataLoader and StatefulDistributedSampler over a map-style dataset: uneven ranks, and states loaded with other workers, ranks or seeds, and at an epoch's end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'torchdata==0.11.0' 'torch==2.13.0' numpy
cat >"$home/program.py" <<'END'
import itertools
from counts import READ, SAMPLES, attempt, check, delivered, over_ranks
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


def loader(workers=2, seed=1, rank=0, ranks=1, drop_last=False):
    sampler = StatefulDistributedSampler(
        range(SAMPLES), num_replicas=ranks, rank=rank, shuffle=True, seed=seed, drop_last=drop_last
    )
    return StatefulDataLoader(range(SAMPLES), batch_size=1, sampler=sampler, num_workers=workers)


def read(batches):
    return [int(batch) for batch in batches]


def resumed(state, workers=2, **change):
    after = loader(workers, **change)
    after.load_state_dict(state)
    return read(after)


if __name__ == "__main__":
    before = loader()
    first = read(itertools.islice(before, READ))
    state = before.state_dict()
    whole = loader()
    read(whole)
    answers = {
        "3 ranks": over_ranks([read(loader(0, rank=rank, ranks=3)) for rank in range(3)]),
        "3 ranks, drop_last": over_ranks([read(loader(0, rank=rank, ranks=3, drop_last=True)) for rank in range(3)]),
        "the same": delivered(first + resumed(state)),
        "3 workers instead of 2": attempt(lambda: delivered(first + resumed(state, 3))),
        "no workers instead of 2": attempt(lambda: delivered(first + resumed(state, 0))),
        "2 ranks instead of 1": attempt(
            lambda: delivered(first + sum((resumed(state, rank=rank, ranks=2) for rank in range(2)), []))
        ),
        "another seed": attempt(lambda: delivered(first + resumed(state, seed=2))),
        "at the end": f"{len(resumed(whole.state_dict()))} of {SAMPLES}",
    }
    expected = {
        "3 ranks": "7/7/7 1 repeated",
        "3 ranks, drop_last": "6/6/6 2 missing",
        "the same": "exact",
        "3 workers instead of 2": "AssertionError",
        "no workers instead of 2": "AssertionError",
        "2 ranks instead of 1": "6 missing",
        "another seed": "5 repeated, 5 missing",
        "at the end": "20 of 20",
    }
    check(answers, expected)
END
PYTHONPATH=$here TMPDIR=$home HOME=$home "$home/v/bin/python" -W ignore "$home/program.py"
