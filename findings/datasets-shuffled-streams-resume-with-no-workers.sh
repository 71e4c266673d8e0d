#!/usr/bin/env bash
# A streaming dataset of Hugging Face with shuffle() cannot be resumed by torchdata's StatefulDataLoader with two workers: each
# raises IndexError on the state that its like has saved, at any place. Without shuffle() the same resumes exactly.
# Expected: the rest of the epoch. Seen with datasets 5.2.0, torchdata 0.11.0 and torch 2.13.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'datasets==5.2.0' 'torchdata==0.11.0' 'torch==2.13.0' numpy
cat >"$home/program.py" <<'END'
import itertools
from datasets import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

def shards(shards):
    for shard in shards:
        yield from ({"x": shard * 5 + number} for number in range(5))

def loader(shuffled):
    stream = IterableDataset.from_generator(shards, gen_kwargs={"shards": [0, 1, 2, 3]})
    return StatefulDataLoader(stream.shuffle(seed=1, buffer_size=10) if shuffled else stream, num_workers=2, batch_size=None)

def resumed(shuffled):
    before = loader(shuffled)
    read = [int(sample["x"]) for sample in itertools.islice(before, 6)]
    after = loader(shuffled)
    after.load_state_dict(before.state_dict())
    try:
        return sorted(read + [int(sample["x"]) for sample in after])
    except IndexError as error:
        return type(error).__name__

if __name__ == "__main__":
    plain, shuffled = resumed(False), resumed(True)
    print(plain, shuffled)
    assert plain == list(range(20))
    assert shuffled == "IndexError"
END
"$home/v/bin/python" "$home/program.py"
