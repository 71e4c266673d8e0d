#!/usr/bin/env bash
# A key-value store of tensorstore's OCDBT driver (checkpoints of Orbax) that has one key overwritten 200 times, and then has
# everything deleted, keeps every version: 200 values and more files than before. Expected: old versions are freed, at least when
# nothing refers to them. Seen with tensorstore 0.1.86.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'tensorstore==0.1.86'
"$home/v/bin/python" - "$home" <<'END'
import os
import sys
import tensorstore

folder = sys.argv[1] + "/ocdbt"
store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/"}).result()
for number in range(200):
    store.write(b"step", bytes([number]) * 10_000).result()

def stored():
    files = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
    return len(files), sum(map(os.path.getsize, files))

before = stored()
store.delete_range(tensorstore.KvStore.KeyRange()).result()
after = stored()
print(before, after, store.list().result())
assert store.list().result() == []
assert after[1] >= 200 * 10_000
assert after[0] >= before[0]
END
