"""Reads the tensors of safetensors files with Run:ai Model Streamer; run by the Python of its environment (weights.py).

Usage: weights_streamer.py PATH..., each a local file or an s3:// address. Prints the bytes of the tensors and the seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] = "0"

from runai_model_streamer import SafetensorsStreamer


def main() -> None:
    """Stream the files."""
    begin = time.perf_counter()
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(sys.argv[1:])
        count = sum(tensor.nbytes for _, tensor in streamer.get_tensors())
    print(json.dumps({"bytes": count, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
