#!/usr/bin/env bash
# A number that does not fit its column of a MosaicML dataset is stored as another one if it is NumPy's: class 300 of an int64 array
# is 44 in a column "uint8", and 70000 is 4464 in "uint16". The same numbers as Python's int raise OverflowError, so a test with
# literals passes and labels from an array are wrong. Expected: an error in both cases.
# Seen with mosaicml-streaming 0.13.0, numpy 2.1.3 and torch 2.13.0. It imports torchvision for its datasets of images alone:
# here an empty one, as a real one must have been built for the same torch.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'mosaicml-streaming==0.13.0' 'torch==2.13.0' 'numpy==2.1.3'
mkdir -p "$home/stub/torchvision/datasets" "$home/stub/torchvision/transforms"
touch "$home/stub/torchvision/__init__.py" "$home/stub/torchvision/transforms/__init__.py"
echo 'class VisionDataset: pass' >"$home/stub/torchvision/datasets/__init__.py"
echo 'to_tensor = None' >"$home/stub/torchvision/transforms/functional.py"
cat >"$home/program.py" <<'END'
import sys
import numpy
from streaming import MDSWriter, StreamingDataset

home = sys.argv[1]
labels = numpy.array([300, 70000])

if __name__ == "__main__":
    with MDSWriter(out=home + "/mds", columns={"small": "uint8", "large": "uint16"}) as writer:
        writer.write({"small": labels[0], "large": labels[1]})
        try:
            writer.write({"small": 300, "large": 70000})
            refused = False
        except OverflowError:
            refused = True
    samples = [(int(sample["small"]), int(sample["large"])) for sample in StreamingDataset(local=home + "/mds", batch_size=1)]
    print(samples, refused)
    assert refused
    assert samples == [(44, 4464)]
END
PYTHONPATH="$home/stub" "$home/v/bin/python" "$home/program.py" "$home"
