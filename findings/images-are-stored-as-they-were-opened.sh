#!/usr/bin/env bash
# A JPEG that was opened by Pillow and changed in place (thumbnail, paste) goes into a dataset of MosaicML (column "jpeg") or of
# LitData as it was: both take the bytes of the file that it was opened from. A preparation that scales images down, or blacks out
# faces, does nothing, and says nothing; with a PNG, or after resize(), which returns another image, the same program works.
# Expected: the image that was given. Seen with mosaicml-streaming 0.13.0, litdata 0.2.76, pillow 13.0.0 and torch 2.13.0. Both
# import torchvision, which must have been built for the same torch: here a stub that decodes by Pillow.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'mosaicml-streaming==0.13.0' 'litdata==0.2.76' 'pillow==13.0.0' 'torch==2.13.0'
mkdir -p "$home/stub/torchvision/datasets" "$home/stub/torchvision/transforms"
touch "$home/stub/torchvision/__init__.py" "$home/stub/torchvision/transforms/__init__.py"
echo 'class VisionDataset: pass' >"$home/stub/torchvision/datasets/__init__.py"
echo 'to_tensor = None' >"$home/stub/torchvision/transforms/functional.py"
cat >"$home/stub/torchvision/io.py" <<'END'
import io
import numpy
import torch
from PIL import Image

class ImageReadMode:
    RGB = "RGB"

def decode_image(data, mode):
    return torch.tensor(numpy.asarray(Image.open(io.BytesIO(data.numpy().tobytes())).convert(mode))).permute(2, 0, 1)

decode_jpeg = decode_image
END
cat >"$home/program.py" <<'END'
import sys
import litdata
import numpy
from PIL import Image
from streaming import MDSWriter, StreamingDataset

home = sys.argv[1]

def images(suffix):
    small, black, resized = (Image.open(f"{home}/white.{suffix}") for _ in range(3))
    small.thumbnail((16, 16))
    black.paste((0, 0, 0), (0, 0, 64, 64))
    return {"small": small, "black": black, "resized": resized.resize((16, 16))}

def seen(sample):
    """Width and brightness of each image as it was read back, as an array or tensor of any order of axes."""
    arrays = {name: numpy.asarray(sample[name]) for name in ("small", "black", "resized")}
    return {name: (array.shape[1], round(array.mean())) for name, array in arrays.items()}

def mosaic(suffix):
    with MDSWriter(out=f"{home}/mds-{suffix}", columns=dict.fromkeys(images(suffix), "jpeg")) as writer:
        writer.write(images(suffix))
    return seen(StreamingDataset(local=f"{home}/mds-{suffix}", shuffle=False, batch_size=1)[0])

if __name__ == "__main__":
    for suffix in ("jpg", "png"):
        Image.new("RGB", (64, 64), (255, 255, 255)).save(f"{home}/white.{suffix}")
    litdata.optimize(images, ["jpg"], f"{home}/lit", chunk_bytes="1MB", num_workers=1)
    read = {"MosaicML": mosaic("jpg"), "MosaicML, PNG": mosaic("png"), "LitData": seen(litdata.StreamingDataset(f"{home}/lit")[0])}
    print(read)
    assert read["MosaicML"] == read["LitData"] == {"small": (64, 255), "black": (64, 255), "resized": (16, 255)}
    assert read["MosaicML, PNG"] == {"small": (16, 255), "black": (64, 0), "resized": (16, 255)}
END
PYTHONPATH="$home/stub" "$home/v/bin/python" "$home/program.py" "$home"
