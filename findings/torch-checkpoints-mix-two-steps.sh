#!/usr/bin/env bash
# A checkpoint of torch.distributed.checkpoint on S3 that is written over the last one, which dcp.save does by default, and breaks off
# because a rank has died, is loaded without an error and is of two steps: rank 0's weights are those of step 2000, rank 1's those of
# step 1000. Each rank overwrites its file under the same name, and nothing binds the files to the .metadata beside them, which is
# written last and still the old one; sizes and places in the files are the same at every step.
# Expected: the old checkpoint, or an error, as .metadata is written last to make a checkpoint valid. What helps: a new address for
# each step, or overwrite=False. Seen with torch 2.13.0, s3fs 2026.9.0 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'torch==2.13.0' numpy 'fsspec==2026.9.0' 's3fs==2026.9.0' 'aiobotocore==3.10.0' \
  'boto3==1.43.117' 'moto[server]==5.2.5'
cat >"$home/program.py" <<'END'
import os
import sys
import boto3
from moto.server import ThreadedMotoServer
import torch
import torch.distributed
import torch.distributed.checkpoint as checkpoint
import torch.multiprocessing

home = sys.argv[1]

class Death:
    """Ends its process while the checkpoint is written, as a node does that is lost."""

    def __reduce__(self):
        os._exit(9)

def rank_main(rank, step, dies):
    torch.distributed.init_process_group("gloo", init_method=f"file://{home}/meeting-{step}", rank=rank, world_size=2)
    state = {f"weights of rank {rank}": torch.full((4,), float(step)), f"step of rank {rank}": torch.tensor(step)}
    if dies and rank == 1:
        state["last words"] = Death()
    checkpoint.save(state, checkpoint_id="s3://bucket/last")
    torch.distributed.destroy_process_group()

def exit_codes(step, dies):
    job = torch.multiprocessing.spawn(rank_main, args=(step, dies), nprocs=2, join=False)
    for process in job.processes:
        process.join()
    return [process.exitcode for process in job.processes]

if __name__ == "__main__":
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    os.environ.update(
        AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=endpoint
    )
    boto3.client("s3").create_bucket(Bucket="bucket")
    assert exit_codes(1000, dies=False) == [0, 0]
    codes = exit_codes(2000, dies=True)
    assert codes[0] != 0 and codes[1] == 9, codes
    loaded = {f"weights of rank {rank}": torch.zeros(4) for rank in range(2)}
    loaded |= {f"step of rank {rank}": torch.tensor(0) for rank in range(2)}
    checkpoint.load(loaded, checkpoint_id="s3://bucket/last", no_dist=True)
    loaded = {key: value.tolist() for key, value in loaded.items()}
    print(loaded)
    assert loaded == {
        "weights of rank 0": [2000.0] * 4, "weights of rank 1": [1000.0] * 4, "step of rank 0": 2000, "step of rank 1": 1000,
    }
    server.stop()
END
"$home/v/bin/python" -W ignore "$home/program.py" "$home" 2>"$home/errors" || { cat "$home/errors"; exit 1; }
