#!/usr/bin/env bash
# torch.distributed.checkpoint keeps of a key that every rank has one rank's value, and gives it to all when it loads: two ranks save
# their loader's position, their seed and the state of their random numbers, and both go on with rank 1's position and random numbers
# and rank 0's seed. Which rank's depends on how the writes were shared out. Nothing compares the values, and nothing is raised.
# Expected: what each rank had saved, or an error, as dcp.save writes a file per rank. Seen with torch 2.13.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'torch==2.13.0' numpy
cat >"$home/program.py" <<'END'
import json
import sys
import torch
import torch.distributed
import torch.distributed.checkpoint as checkpoint
import torch.multiprocessing

home = sys.argv[1]

def rank_main(rank):
    torch.distributed.init_process_group("gloo", init_method=f"file://{home}/meeting", rank=rank, world_size=2)
    state = {"weights": torch.ones(3), "loader": {"position": 100 + rank}, "random": torch.full((2,), rank), "seed": b"%d" % rank}
    checkpoint.save(state, checkpoint_id=f"{home}/checkpoint")
    loaded = {"weights": torch.zeros(3), "loader": {"position": 0}, "random": torch.zeros(2, dtype=torch.int64), "seed": b""}
    checkpoint.load(loaded, checkpoint_id=f"{home}/checkpoint")
    with open(f"{home}/{rank}.json", "w") as file:
        json.dump([loaded["loader"]["position"], loaded["random"].tolist(), loaded["seed"].decode()], file)
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank_main, nprocs=2)
    ranks = [json.load(open(f"{home}/{rank}.json")) for rank in range(2)]
    print(ranks)
    assert ranks[0] == ranks[1]
    assert ranks[0] == [101, [1, 1], "0"]
END
"$home/v/bin/python" "$home/program.py" "$home"
