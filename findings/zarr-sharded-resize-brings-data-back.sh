#!/usr/bin/env bash
# An array of zarr that is made smaller and then larger again shows the old values in the sharded case, all of them, and without
# shards those of the chunk at the edge. Expected: the fill value where the array had been cut off. Values that were removed come
# back, and how many depends on the shards. Seen with zarr 3.1.6.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'zarr==3.1.6'
"$home/v/bin/python" - "$home" <<'END'
import os
import numpy
import zarr

def cut_and_grown(**shapes):
    array = zarr.create_array(store=zarr.storage.MemoryStore(), shape=(100,), dtype="i8", fill_value=0, **shapes)
    array[:] = numpy.arange(100)
    array.resize((10,))
    array.resize((100,))
    return int((array[10:] != 0).sum())

back = {"chunks of 10": cut_and_grown(chunks=(10,)), "chunks of 30": cut_and_grown(chunks=(30,)),
        "a shard of 100, chunks of 10": cut_and_grown(chunks=(10,), shards=(100,))}
print(back)
assert back == {"chunks of 10": 0, "chunks of 30": 20, "a shard of 100, chunks of 10": 90}
END
