#!/usr/bin/env bash
# LitData: uneven ranks, and states loaded with other workers, ranks or seeds, and at an epoch's end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'litdata==0.2.76' 'torch==2.13.0' numpy
cat >"$home/program.py" <<'END'
import itertools
import tempfile
from counts import READ, SAMPLES, attempt, check, delivered, over_ranks
from litdata import StreamingDataLoader, StreamingDataset, optimize
from litdata.utilities.env import _DistributedEnv


def sample(number):
    return {"x": number}


def loader(folder, workers=2, seed=1, rank=0, ranks=1, drop_last=None):
    dataset = StreamingDataset(folder, shuffle=True, seed=seed, drop_last=drop_last)
    if ranks > 1:
        dataset.distributed_env = _DistributedEnv(ranks, rank, 1)
        dataset.set_drop_last(drop_last is not False)  # what it does itself under torch.distributed
    return StreamingDataLoader(dataset, batch_size=1, num_workers=workers)


def read(batches):
    return [int(batch["x"]) for batch in batches]


def resumed(folder, state, workers=2, **change):
    after = loader(folder, workers, **change)
    after.load_state_dict(state)
    return read(after)


if __name__ == "__main__":
    folder = tempfile.mkdtemp() + "/dataset"
    optimize(fn=sample, inputs=list(range(SAMPLES)), output_dir=folder, chunk_size=5, num_workers=1)
    before = loader(folder)
    first = read(itertools.islice(before, READ))
    state = before.state_dict()
    whole = loader(folder)
    read(whole)
    shares = {drop: [read(loader(folder, 0, rank=rank, ranks=3, drop_last=drop)) for rank in range(3)] for drop in (None, False)}
    answers = {
        "3 ranks": over_ranks(shares[None]),
        "3 ranks, drop_last=False": over_ranks(shares[False]),
        "the same": delivered(first + resumed(folder, state)),
        "3 workers instead of 2": attempt(lambda: delivered(first + resumed(folder, state, 3))),
        "no workers instead of 2": attempt(lambda: delivered(first + resumed(folder, state, 0))),
        "2 ranks instead of 1": attempt(
            lambda: delivered(first + sum((resumed(folder, state, rank=rank, ranks=2) for rank in range(2)), []))
        ),
        "another seed": attempt(lambda: delivered(first + resumed(folder, state, seed=2))),
        "at the end": f"{len(resumed(folder, whole.state_dict()))} of {SAMPLES}",
    }
    expected = {
        "3 ranks": "6/6/6 2 missing",
        "3 ranks, drop_last=False": "6/6/8 exact",
        "the same": "exact",
        "3 workers instead of 2": "exact",
        "no workers instead of 2": "exact",
        "2 ranks instead of 1": "ValueError",
        "another seed": "ValueError",
        "at the end": "20 of 20",
    }
    check(answers, expected)
END
PYTHONPATH=$here TMPDIR=$home HOME=$home "$home/v/bin/python" -W ignore "$home/program.py"
