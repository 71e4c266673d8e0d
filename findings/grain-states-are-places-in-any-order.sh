#!/usr/bin/env bash
# The state of an iterator of Grain is a number. Loaded into a pipeline of another seed it goes on at that place of the other
# order (here 3 of 10 records come twice, 3 never), and with two ranks in place of one every rank skips that many of its own (4 of
# 10 records are never read). Nothing is raised. Expected: an error; Grain's older DataLoader compares sampler and source and has
# one. Seen with grain 0.2.18.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'grain==0.2.18'
"$home/v/bin/python" - <<'END'
import grain

def iterator(seed=1, rank=0, ranks=1):
    return iter(grain.MapDataset.range(10).seed(seed).shuffle()[rank::ranks].to_iter_dataset())

first = iterator()
read = [next(first) for _ in range(4)]
state = first.get_state()

def resumed(**change):
    after = iterator(**change)
    after.set_state(state)
    return list(after)

seed = resumed(seed=5)
ranks = [resumed(rank=rank, ranks=2) for rank in range(2)]
print(state, read, seed, ranks)
assert sorted(read + resumed()) == list(range(10))
assert len(set(read) & set(seed)) == 3
assert len(set(range(10)) - set(read) - set(seed)) == 3
assert list(map(len, ranks)) == [1, 1]
assert len(set(range(10)) - set(read) - set(sum(ranks, []))) == 4
END
