#!/usr/bin/env bash
# Streaming datasets of Hugging Face: uneven ranks, and states loaded with other workers, ranks or seeds, and at an epoch's end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'datasets==5.2.0' 'torchdata==0.11.0' 'torch==2.13.0' numpy
cat >"$home/program.py" <<'END'
import itertools
from counts import READ, SAMPLES, attempt, check, delivered, over_ranks
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader


def shards(shards):
    for shard in shards:
        yield from ({"x": shard * 5 + number} for number in range(5))


def stream(seed=1, rank=0, ranks=1):
    whole = IterableDataset.from_generator(shards, gen_kwargs={"shards": [0, 1, 2, 3]})
    whole = whole if seed is None else whole.shuffle(seed=seed, buffer_size=1)
    return split_dataset_by_node(whole, rank, ranks) if ranks > 1 else whole


def read(samples):
    return [int(sample["x"]) for sample in samples]


def resumed(state, workers=0, **change):
    after = stream(**change)
    after.load_state_dict(state)
    return read(DataLoader(after, num_workers=workers, batch_size=None))


def stateful(workers, seed):
    return StatefulDataLoader(stream(seed), num_workers=workers, batch_size=None)


def through_stateful(workers, seed):
    before, after = stateful(2, seed), stateful(workers, seed)
    first = read(itertools.islice(before, READ))
    after.load_state_dict(before.state_dict())
    return delivered(first + read(after))


if __name__ == "__main__":
    before = stream()
    first = read(itertools.islice(before, READ))
    state = before.state_dict()
    plain = stream(seed=None)
    assert read(itertools.islice(plain, READ)) == list(range(READ))
    whole = stream()
    read(whole)
    answers = {
        "3 ranks": over_ranks([read(stream(rank=rank, ranks=3)) for rank in range(3)]),
        "the same": delivered(first + resumed(state)),
        "2 workers instead of none": attempt(lambda: delivered(first + resumed(state, 2))),
        "2 workers instead of none, not shuffled": attempt(
            lambda: delivered([*range(READ), *resumed(plain.state_dict(), 2, seed=None)])
        ),
        "2 ranks instead of 1": attempt(
            lambda: delivered(first + sum((resumed(state, rank=rank, ranks=2) for rank in range(2)), []))
        ),
        "another seed": delivered(first + resumed(state, seed=2)),
        "at the end": f"{len(resumed(whole.state_dict()))} of {SAMPLES}",
        "StatefulDataLoader, 2 workers": attempt(lambda: through_stateful(2, 1)),
        "StatefulDataLoader, 2 workers, not shuffled": attempt(lambda: through_stateful(2, None)),
        "StatefulDataLoader, 3 workers instead of 2": attempt(lambda: through_stateful(3, None)),
    }
    expected = {
        "3 ranks": "7/7/6 exact",
        "the same": "exact",
        "2 workers instead of none": "IndexError",
        "2 workers instead of none, not shuffled": "6 missing",
        "2 ranks instead of 1": "IndexError",
        "another seed": "2 repeated, 2 missing",
        "at the end": "0 of 20",
        "StatefulDataLoader, 2 workers": "IndexError",
        "StatefulDataLoader, 2 workers, not shuffled": "exact",
        "StatefulDataLoader, 3 workers instead of 2": "AssertionError",
    }
    check(answers, expected)
END
PYTHONPATH=$here TMPDIR=$home HOME=$home "$home/v/bin/python" -W ignore "$home/program.py"
