#!/usr/bin/env bash
# A state of a streaming dataset of Hugging Face that was saved without worker processes, and is loaded before a DataLoader with two
# of them, loses samples: every worker applies the whole state to its own shards. 7 of 20 samples were read, 6 more come, and
# 7 are never read; nothing is raised. Expected: the other 13, or an error, as torchdata's loader has.
# Seen with datasets 5.2.0 and torch 2.13.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'datasets==5.2.0' 'torch==2.13.0' numpy
cat >"$home/program.py" <<'END'
import itertools
from datasets import IterableDataset
from torch.utils.data import DataLoader

def shards(shards):
    for shard in shards:
        yield from ({"x": shard * 10 + number} for number in range(5))

def dataset():
    return IterableDataset.from_generator(shards, gen_kwargs={"shards": [0, 1, 2, 3]})

if __name__ == "__main__":
    before = dataset()
    read = [sample["x"] for sample in itertools.islice(before, 7)]
    rest = {}
    for workers in (0, 2):
        after = dataset()
        after.load_state_dict(before.state_dict())
        rest[workers] = sorted(int(sample["x"]) for sample in DataLoader(after, num_workers=workers, batch_size=None))
    print(read, rest)
    assert sorted(read + rest[0]) == [shard * 10 + number for shard in range(4) for number in range(5)]
    assert rest[2] == [22, 23, 24, 32, 33, 34]
END
"$home/v/bin/python" "$home/program.py"
