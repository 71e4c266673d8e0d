#!/usr/bin/env bash
# take(7) and skip(7) of a streaming dataset of Hugging Face are other samples under a DataLoader with workers: each worker takes
# or skips its part of the 7 in its own shards. A validation by take(7) without workers and a training by skip(7) with two share
# a sample, and another is in neither. Expected: a split that is one whoever reads it. Seen with datasets 5.2.0 and torch 2.13.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'datasets==5.2.0' 'torch==2.13.0' numpy
cat >"$home/program.py" <<'END'
from datasets import IterableDataset
from torch.utils.data import DataLoader

def shards(shards):
    for shard in shards:
        yield from ({"x": shard * 10 + number} for number in range(5))

def read(dataset, workers):
    return {int(sample["x"]) for sample in DataLoader(dataset, num_workers=workers, batch_size=None)}

if __name__ == "__main__":
    whole = IterableDataset.from_generator(shards, gen_kwargs={"shards": [0, 1, 2, 3]})
    validation, training = read(whole.take(7), 0), read(whole.skip(7), 2)
    print(sorted(validation), sorted(training))
    assert read(whole.take(7), 0) | read(whole.skip(7), 0) == read(whole, 0)
    assert validation & training == {4}
    assert read(whole, 0) - validation - training == {12}
END
"$home/v/bin/python" "$home/program.py"
