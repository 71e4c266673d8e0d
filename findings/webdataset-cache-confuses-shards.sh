#!/usr/bin/env bash
# WebDataset(..., cache_dir=...) names a cached shard by the last part of its address alone: with train/shard-0.tar in the cache,
# a dataset of val/shard-0.tar, of whatever bucket or server, is read from the training shard. Expected: a name of the whole address.
# Seen with webdataset 1.0.2.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'webdataset==1.0.2'
"$home/v/bin/python" - "$home" <<'END'
import functools
import http.server
import os
import sys
import threading
import webdataset

home = sys.argv[1]
for split in ("train", "val"):
    os.makedirs(f"{home}/served/{split}")
    with webdataset.TarWriter(f"{home}/served/{split}/shard-0.tar") as tar:
        tar.write({"__key__": "0", "txt": split})
os.mkdir(f"{home}/cache")
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=f"{home}/served")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
threading.Thread(target=server.serve_forever, daemon=True).start()

def samples(split):
    address = f"http://127.0.0.1:{server.server_port}/{split}/shard-0.tar"
    return [sample["txt"] for sample in webdataset.WebDataset(address, cache_dir=f"{home}/cache", shardshuffle=False)]

read = {split: samples(split) for split in ("train", "val")}
print(read, os.listdir(f"{home}/cache"))
assert read == {"train": [b"train"], "val": [b"train"]}
assert os.listdir(f"{home}/cache") == ["shard-0.tar"]
END
