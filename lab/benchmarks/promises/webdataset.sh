#!/usr/bin/env bash
# WebDataset, which has no states: uneven ranks, and states loaded with other workers, ranks or seeds, and at an epoch's end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'webdataset==1.0.2'
cat >"$home/program.py" <<'END'
import os
import tempfile
import webdataset
from counts import attempt, check, over_ranks

home = tempfile.mkdtemp()
for shard in range(4):
    with webdataset.TarWriter(f"{home}/{shard}.tar") as tar:
        for number in range(5):
            tar.write({"__key__": str(shard * 5 + number), "txt": "x"})


def shares(ranks):
    keys = []
    for rank in range(ranks):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
        dataset = webdataset.WebDataset(home + "/{0..3}.tar", shardshuffle=False, nodesplitter=webdataset.split_by_node)
        keys.append([int(sample["__key__"]) for sample in dataset])
    return over_ranks(keys)


answers = {
    "3 ranks": shares(3),
    "5 ranks": attempt(lambda: shares(5)),
    "states": str(hasattr(webdataset.WebDataset, "state_dict") or hasattr(webdataset.WebLoader, "state_dict")),
}
expected = {
    "3 ranks": "10/5/5 exact",
    "5 ranks": "ValueError",
    "states": "False",
}
check(answers, expected)
END
PYTHONPATH=$here TMPDIR=$home HOME=$home "$home/v/bin/python" -W ignore "$home/program.py"
