#!/usr/bin/env bash
# WebDataset(...).repeat().with_epoch(n) begins at the first sample in every epoch: with fewer samples per epoch than there are,
# the last ones are never read. Expected: that a repeated stream goes on where the last epoch ended, which is why it is repeated.
# Seen with webdataset 1.0.2.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'webdataset==1.0.2'
"$home/v/bin/python" - "$home" <<'END'
import sys
import webdataset

shard = sys.argv[1] + "/shard.tar"
with webdataset.TarWriter(shard) as tar:
    for number in range(10):
        tar.write({"__key__": f"{number}", "txt": "x"})
stream = webdataset.WebDataset(shard, shardshuffle=False).repeat().with_epoch(7)
epochs = [[sample["__key__"] for sample in stream] for _ in range(5)]
print(epochs)
assert all(epoch == [str(number) for number in range(7)] for epoch in epochs)
END
