#!/usr/bin/env bash
# MosaicML Streaming: uneven ranks, and states loaded with other workers, ranks or seeds, and at an epoch's end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'mosaicml-streaming==0.13.0' 'torch==2.13.0'
mkdir -p "$home/stub/torchvision/datasets" "$home/stub/torchvision/transforms"  # imported for images, which are not used here
touch "$home/stub/torchvision/__init__.py" "$home/stub/torchvision/transforms/__init__.py"
echo 'class VisionDataset: pass' >"$home/stub/torchvision/datasets/__init__.py"
echo 'to_tensor = None' >"$home/stub/torchvision/transforms/functional.py"
cat >"$home/program.py" <<'END'
import json
import os
import socket
import subprocess
import sys
import tempfile
from counts import READ, SAMPLES, attempt, check, delivered, over_ranks


def rank(folder, workers, seed, state, stop):
    """One rank: prints what it received, and its state."""
    import torch.distributed
    from streaming import StreamingDataLoader, StreamingDataset

    if int(os.environ["WORLD_SIZE"]) > 1:
        torch.distributed.init_process_group("gloo")
    dataset = StreamingDataset(local=folder, batch_size=1, shuffle=True, shuffle_seed=seed)
    loader = StreamingDataLoader(dataset, batch_size=1, num_workers=workers)
    if state is not None:
        loader.load_state_dict(state)
    received = []
    for batch in loader:
        received.append(int(batch["x"][0]))
        if len(received) == stop:
            break
    print("\n" + json.dumps([received, loader.state_dict()]), flush=True)
    os._exit(0)


def train(folder, workers=2, seed=1, state=None, stop=None, ranks=1):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", __file__, json.dumps([folder, workers, seed, state, stop])]
    place = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | {name: str(value) for name, value in (place | {"RANK": number, "LOCAL_RANK": number}).items()},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(ranks)
    ]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(*json.loads(sys.argv[1]))
    from streaming import MDSWriter

    folder = tempfile.mkdtemp() + "/dataset"
    with MDSWriter(out=folder, columns={"x": "int"}, size_limit=150) as writer:
        for number in range(SAMPLES):
            writer.write({"x": number})
    ((first, state),) = train(folder, stop=READ)
    ((_, end),) = train(folder)

    def resumed(**change):
        return sum((received for received, _ in train(folder, state=state, **change)), [])

    answers = {
        "3 ranks": over_ranks([received for received, _ in train(folder, 0, ranks=3)]),
        "the same": delivered(first + resumed()),
        "3 workers instead of 2": attempt(lambda: delivered(first + resumed(workers=3))),
        "no workers instead of 2": attempt(lambda: delivered(first + resumed(workers=0))),
        "2 ranks instead of 1": attempt(lambda: delivered(first + resumed(workers=0, ranks=2))),
        "another seed": attempt(lambda: delivered(first + resumed(seed=2))),
        "at the end": f"{len(train(folder, state=end)[0][0])} of {SAMPLES}",
    }
    expected = {
        "3 ranks": "7/7/7 1 repeated",
        "the same": "exact",
        "3 workers instead of 2": "exact",
        "no workers instead of 2": "exact",
        "2 ranks instead of 1": "exact",
        "another seed": "exact",
        "at the end": "0 of 20",
    }
    check(answers, expected)
END
PYTHONPATH=$here:$home/stub TMPDIR=$home HOME=$home "$home/v/bin/python" -W ignore "$home/program.py"
