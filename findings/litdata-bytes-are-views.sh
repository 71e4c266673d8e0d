#!/usr/bin/env bash
# A field that was stored in a LitData dataset as bytes is read as a memoryview, which pickle refuses: it cannot go from a worker of a
# DataLoader to the training process as it is. Expected: bytes, as str and int are read as what they were; bytes(sample["data"]) in
# the worker helps. Seen with litdata 0.2.76.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'litdata==0.2.76' 'torch==2.13.0'
cat >"$home/views.py" <<'END'
import pickle
import sys

import litdata


def sample(number):
    return {"data": bytes([number]) * 1000, "text": str(number), "number": number}


if __name__ == "__main__":
    litdata.optimize(fn=sample, inputs=list(range(10)), output_dir=sys.argv[1], chunk_bytes=10_000, num_workers=1)
    first = next(iter(litdata.StreamingDataset(sys.argv[1])))
    print({name: type(value).__name__ for name, value in first.items()})
    assert type(first["data"]) is memoryview and bytes(first["data"]) == sample(0)["data"]
    assert (type(first["text"]), type(first["number"])) == (str, int)
    try:
        pickle.dumps(first)
    except TypeError as error:
        print(error)
    else:
        raise SystemExit("pickle takes it now")
END
HOME=$home "$home/v/bin/python" -W ignore "$home/views.py" "$home/data" 2>"$home/log" || { cat "$home/log"; exit 1; }
