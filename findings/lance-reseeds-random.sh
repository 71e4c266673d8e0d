#!/usr/bin/env bash
# The samplers of Lance for training, ShardedFragmentSampler and ShardedBatchSampler, with randomize=True seed Python's random module of
# the whole process with their own seed, 0 by default, when an iteration begins: random.random() of an augmentation gives the same
# numbers in every epoch and on every rank, although each rank has seeded it otherwise. With randomize=False they differ, as they should.
# Expected: a generator of the sampler's own. What helps: a random.Random of one's own in the augmentations. Seen with pylance 14.0.2.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'pylance==14.0.2' 'pyarrow==25.0.1'
"$home/v/bin/python" - "$home" <<'END'
import random
import sys
import lance
import pyarrow
from lance.sampler import ShardedBatchSampler, ShardedFragmentSampler

dataset = lance.write_dataset(pyarrow.table({"row": range(24)}), f"{sys.argv[1]}/dataset", max_rows_per_file=6)

def crops(sampler_class, randomize):
    """Returns what an augmentation draws for the batches of an epoch: two ranks, each seeded otherwise, two epochs each."""
    drawn = []
    for rank in range(2):
        random.seed(f"rank {rank}")
        sampler = sampler_class(rank, 2, randomize=randomize)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            drawn.append(tuple(random.randrange(1000) for _ in sampler(dataset, batch_size=3, columns=["row"])))
    return drawn

for sampler_class in (ShardedFragmentSampler, ShardedBatchSampler):
    ordered, shuffled = crops(sampler_class, randomize=False), crops(sampler_class, randomize=True)
    print(sampler_class.__name__, ordered, shuffled)
    assert len(set(ordered)) == 4
    assert len(set(shuffled)) == 1 and len(shuffled[0]) == 4
END
