"""Write the samples below a folder as TARs, as MosaicML's shards and as LitData's chunks."""

import io
import sys
import tarfile

import litdata
import streaming
from data import LENGTH, SAMPLES, SHARD, image, label


def tars(folder):
    """Files NUMBER.jpg and NUMBER.cls, as WebDataset groups them."""
    folder.mkdir()
    per_shard = SHARD // LENGTH
    for first in range(0, SAMPLES, per_shard):
        with tarfile.open(folder / f"{first:06}.tar", "w", format=tarfile.USTAR_FORMAT) as shard:
            for number in range(first, min(SAMPLES, first + per_shard)):
                for name, content in (("jpg", image(number)), ("cls", str(label(number)).encode())):
                    info = tarfile.TarInfo(f"{number:06}.{name}")
                    info.size = len(content)
                    shard.addfile(info, io.BytesIO(content))


def mds(folder):
    """Shards of MosaicML Streaming."""
    with streaming.MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}, size_limit=SHARD) as writer:
        for number in range(SAMPLES):
            writer.write({"image": image(number), "label": label(number)})


def sample(number):
    """A sample of LitData."""
    return {"image": image(number), "label": label(number)}


if __name__ == "__main__":
    from pathlib import Path

    home = Path(sys.argv[1])
    tars(home / "tar")
    mds(home / "mds")
    litdata.optimize(
        fn=sample, inputs=list(range(SAMPLES)), output_dir=str(home / "lit"), chunk_bytes=SHARD, num_workers=1
    )
