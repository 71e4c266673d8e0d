#!/usr/bin/env bash
# A Loader of torchdata.nodes whose state_dict() is called before load_state_dict() begins at the first sample all the same, and the
# loaded state comes into force an epoch later. torch.distributed.checkpoint.load() calls both in this order, as it asks each object
# what it wants to have loaded: a job that is resumed from its checkpoint after 3 of 6 batches reads those 3 again, and its next epoch
# has the last 3 alone. Nothing is raised. load_state_dict() in a fresh Loader, without a state_dict() before it, resumes exactly, as
# torchdata's StatefulDataLoader does with torch.distributed.checkpoint, too.
# Expected: the next iterator goes on where the loaded state says. What helps: keep loader.state_dict() in the checkpoint as a value,
# load into a plain dictionary, and call load_state_dict() with it. Seen with torchdata 0.11.0 and torch 2.13.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'torchdata==0.11.0' 'torch==2.13.0' numpy
"$home/v/bin/python" -W ignore - "$home" <<'END'
import sys
import torch.distributed.checkpoint as checkpoint
from torchdata.nodes import Batcher, IterableWrapper, Loader
from torchdata.stateful_dataloader import StatefulDataLoader

home = sys.argv[1]

def nodes():
    return Loader(Batcher(IterableWrapper(range(12)), batch_size=2))

def stateful():
    return StatefulDataLoader(range(12), batch_size=2, collate_fn=list)

def resumed(loader, name):
    loader_before = loader()
    batches = iter(loader_before)
    for _ in range(3):
        next(batches)
    checkpoint.save({"loader": loader_before}, checkpoint_id=f"{home}/{name}", no_dist=True)
    state = loader_before.state_dict()
    loader_after = loader()
    checkpoint.load({"loader": loader_after}, checkpoint_id=f"{home}/{name}", no_dist=True)
    by_checkpoint = [list(loader_after) for _ in range(3)]
    loader_after = loader()
    loader_after.load_state_dict(state)
    return by_checkpoint, [list(loader_after) for _ in range(3)]

every = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
rest = every[3:]
by_checkpoint, by_itself = resumed(nodes, "nodes")
print(by_checkpoint, by_itself)
assert by_checkpoint == [every, rest, every]
assert by_itself == [rest, every, every]
assert resumed(stateful, "stateful") == ([rest, every, every], [rest, every, every])
END
