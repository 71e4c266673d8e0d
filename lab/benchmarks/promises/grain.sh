#!/usr/bin/env bash
# Grain: its DataLoader, and iterators of a MapDataset: uneven ranks, and states loaded with other workers, ranks or seeds, and at an epoch's end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'grain==0.2.18'
cat >"$home/program.py" <<'END'
import itertools
import grain.python as grain
from counts import READ, SAMPLES, attempt, check, delivered, over_ranks


class Records:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index

    def __repr__(self):
        return "Records()"  # which states are compared by


def loader(workers=2, seed=1, rank=0, ranks=1, drop_remainder=False):
    options = grain.ShardOptions(rank, ranks, drop_remainder)
    sampler = grain.IndexSampler(SAMPLES, num_epochs=1, shard_options=options, shuffle=True, seed=seed)
    return iter(grain.DataLoader(data_source=Records(), sampler=sampler, worker_count=workers))


def iterator(workers=0, seed=1, rank=0, ranks=1):
    dataset = grain.MapDataset.range(SAMPLES).seed(seed).shuffle()[rank::ranks].to_iter_dataset()
    return iter(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else dataset)


def read(samples):
    return list(map(int, samples))


def asked(build, workers, other):
    before, whole = build(workers), build(workers)
    first = read(itertools.islice(before, READ))
    state = before.get_state()
    read(whole)

    def resumed(state=state, workers=workers, **change):
        after = build(workers, **change)
        after.set_state(state)
        return read(after)

    return {
        "3 ranks": over_ranks([read(build(0, rank=rank, ranks=3)) for rank in range(3)]),
        "the same": delivered(first + resumed()),
        f"{other} workers instead of {workers}": attempt(lambda: delivered(first + resumed(workers=other))),
        "2 ranks instead of 1": attempt(
            lambda: delivered(first + sum((resumed(rank=rank, ranks=2) for rank in range(2)), []))
        ),
        "another seed": attempt(lambda: delivered(first + resumed(seed=2))),
        "at the end": attempt(lambda: f"{len(resumed(whole.get_state()))} of {SAMPLES}"),
    }


if __name__ == "__main__":
    answers = {f"DataLoader: {name}": answer for name, answer in asked(loader, 2, 3).items()}
    answers |= {f"MapDataset: {name}": answer for name, answer in asked(iterator, 2, 3).items()}
    expected = {
        "DataLoader: 3 ranks": "6/6/6 2 missing",
        "DataLoader: the same": "exact",
        "DataLoader: 3 workers instead of 2": "ValueError",
        "DataLoader: 2 ranks instead of 1": "ValueError",
        "DataLoader: another seed": "ValueError",
        "DataLoader: at the end": "0 of 20",
        "MapDataset: 3 ranks": "7/7/6 exact",
        "MapDataset: the same": "exact",
        "MapDataset: 3 workers instead of 2": "IndexError",
        "MapDataset: 2 ranks instead of 1": "6 missing",
        "MapDataset: another seed": "5 repeated, 5 missing",
        "MapDataset: at the end": "0 of 20",
    }
    check(answers, expected)
END
PYTHONPATH=$here TMPDIR=$home HOME=$home "$home/v/bin/python" -W ignore "$home/program.py"
