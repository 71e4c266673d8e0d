#!/usr/bin/env bash
# A MosaicML dataset that was written again at its remote address, with shards of the same names, is read half old and half new by a
# job whose local folder holds the index and some shards of before: 86 samples of the old one, 314 of the new one, and no error, as
# nothing compares the local index with the remote one. Expected: one of the two datasets, or an error.
# Seen with mosaicml-streaming 0.13.0 and torch 2.13.0. It imports torchvision for its datasets of images alone: here an empty one,
# as a real one must have been built for the same torch.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'mosaicml-streaming==0.13.0' 'torch==2.13.0'
mkdir -p "$home/stub/torchvision/datasets" "$home/stub/torchvision/transforms"
touch "$home/stub/torchvision/__init__.py" "$home/stub/torchvision/transforms/__init__.py"
echo 'class VisionDataset: pass' >"$home/stub/torchvision/datasets/__init__.py"
echo 'to_tensor = None' >"$home/stub/torchvision/transforms/functional.py"
cat >"$home/program.py" <<'END'
import os
import shutil
import sys
from streaming import MDSWriter, StreamingDataset

home = sys.argv[1]
remote, local = home + "/remote", home + "/local"

def write(first):
    shutil.rmtree(remote, ignore_errors=True)
    with MDSWriter(out=remote, columns={"x": "int"}, size_limit=1200) as writer:
        for number in range(400):
            writer.write({"x": first + number})

write(0)
dataset = StreamingDataset(remote=remote, local=local, batch_size=1, shuffle=False)
assert dataset[0]["x"] == 0
print(sorted(os.listdir(local)))
del dataset
write(1000)
dataset = StreamingDataset(remote=remote, local=local, batch_size=1, shuffle=False)
read = [dataset[number]["x"] for number in range(400)]
old = sum(value < 1000 for value in read)
print(old, len(read) - old)
assert (old, len(read)) == (86, 400)
END
PYTHONPATH=$home/stub TMPDIR=$home "$home/v/bin/python" "$home/program.py" "$home"
