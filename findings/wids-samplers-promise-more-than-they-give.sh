#!/usr/bin/env bash
# The DistributedChunkedSampler of wids says the same len() on every rank and yields fewer on the last ones: 10 samples over 4 ranks
# are 3, 3, 3 and 1, and 5 are 2, 2, 1 and 0, where len() says 3 and 2. Ranks in lockstep wait for the last. Expected: padding or
# dropping, as torch's DistributedSampler does and the equal len() promises. Seen with wids 0.1.11 and torch 2.13.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'wids==0.1.11' 'torch==2.13.0' numpy
"$home/v/bin/python" - "$home" <<'END'
import sys
import torch.distributed
from wids import DistributedChunkedSampler

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/group", rank=0, world_size=1)
yielded, promised = {}, {}
for samples in (10, 5):
    samplers = [DistributedChunkedSampler(range(samples), num_replicas=4, rank=rank) for rank in range(4)]
    promised[samples] = [len(sampler) for sampler in samplers]
    yielded[samples] = [len(list(sampler)) for sampler in samplers]
print(promised, yielded)
assert promised == {10: [3, 3, 3, 3], 5: [2, 2, 2, 2]}
assert yielded == {10: [3, 3, 3, 1], 5: [2, 2, 1, 0]}
torch.distributed.destroy_process_group()
END
