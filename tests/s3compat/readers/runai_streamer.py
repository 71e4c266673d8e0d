# /// script
# dependencies = ["runai-model-streamer[s3]==0.17.1", "torch==2.13.0", "safetensors==0.8.0", "numpy==2.4.6", "obstore==0.12.1"]
# ///
"""Run:ai Model Streamer: the tensors of a file of safetensors, in ranges of 8 MiB over many connections."""

import os

import obstore
from obstore.store import S3Store
from place import BUCKET, ENDPOINT, PREFIX, URL, numbers, run, version_of_numbers

COUNT = 2_000_000


def write(version):
    """Write the file."""
    import torch
    from safetensors.torch import save

    tensors = {name: torch.tensor(numbers(version, COUNT), dtype=torch.int64) for name in ("a", "b")}
    store = S3Store(BUCKET, prefix=PREFIX, endpoint=ENDPOINT, client_options={"allow_http": True})
    obstore.put(store, "model.safetensors", save(tensors))


def read():
    """Stream the tensors."""
    os.environ["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] = "0"
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(f"{URL}/model.safetensors")
        versions = [version_of_numbers(tensor.tolist(), COUNT) for _, tensor in streamer.get_tensors()]
    assert len(versions) == 2
    assert len(set(versions)) == 1
    return versions[0]


run(write, read)
