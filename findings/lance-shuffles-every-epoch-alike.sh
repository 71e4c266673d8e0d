#!/usr/bin/env bash
# The samplers of Lance for training, ShardedFragmentSampler and ShardedBatchSampler with randomize=True, have a set_epoch() as PyTorch's
# DistributedSampler has, and it changes nothing: every epoch comes in the one order that the seed gives. Only with a filter does
# ShardedBatchSampler take the epoch into account. Nothing is raised.
# Expected: another order after set_epoch(1). What helps: a sampler of seed=epoch for each epoch. Seen with pylance 14.0.2.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'pylance==14.0.2' 'pyarrow==25.0.1'
"$home/v/bin/python" - "$home" <<'END'
import sys
import lance
import pyarrow
from lance.sampler import ShardedBatchSampler, ShardedFragmentSampler

dataset = lance.write_dataset(pyarrow.table({"row": range(96)}), f"{sys.argv[1]}/dataset", max_rows_per_file=6)

def orders(sampler_class, seeds=(0, 0, 0), filter=None):
    """Returns the rows in the order of rank 0 of 2 in epochs 0, 1 and 2."""
    rows = []
    for epoch, seed in enumerate(seeds):
        sampler = sampler_class(0, 2, randomize=True, seed=seed)
        sampler.set_epoch(epoch)
        batches = sampler(dataset, batch_size=3, columns=["row"], filter=filter)
        rows.append([row for batch in batches for row in batch["row"].to_pylist()])
    assert all(len(set(order)) == 48 for order in rows)
    return rows

for sampler_class in (ShardedFragmentSampler, ShardedBatchSampler):
    first, second, third = orders(sampler_class)
    print(sampler_class.__name__, [order[::3] for order in (first, second, third)])
    assert first == second == third != sorted(first)
    first, second, third = orders(sampler_class, seeds=(0, 1, 2))
    assert first != second != third
first, second, third = orders(ShardedBatchSampler, filter="row >= 0")
assert first != second != third
END
