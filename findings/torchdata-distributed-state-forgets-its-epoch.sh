#!/usr/bin/env bash
# The state of torchdata's StatefulDistributedSampler is a number of samples, without the epoch that set_epoch() gave it: a
# StatefulDataLoader that was stopped after 8 samples of epoch 3 goes on at the ninth of epoch 0 in a new process, whose samples
# are others: of rank 0's 12 samples the last 4 are never read, and one comes twice. Nothing is raised; after set_epoch(3) it goes on
# as it should.
# Expected: a state that says which epoch it is in, as that of RandomSampler in the same loader keeps its generator.
# Seen with torchdata 0.11.0 and torch 2.13.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'torchdata==0.11.0' 'torch==2.13.0' numpy
"$home/v/bin/python" - <<'END'
import pickle
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

def loader():
    sampler = StatefulDistributedSampler(range(24), num_replicas=2, rank=0, seed=0)
    return sampler, StatefulDataLoader(range(24), batch_size=4, sampler=sampler)

def resumed(state, epoch=None):
    sampler, batches = loader()
    if epoch is not None:
        sampler.set_epoch(epoch)
    batches.load_state_dict(state)
    return [int(sample) for batch in batches for sample in batch]

sampler, batches = loader()
sampler.set_epoch(3)
iterator = iter(batches)
before = [int(sample) for _ in range(2) for sample in next(iterator)]
state = pickle.loads(pickle.dumps(batches.state_dict()))
after = [int(sample) for batch in iterator for sample in batch]
print(before, after, resumed(state), sampler.state_dict())
assert resumed(state, epoch=3) == after
assert resumed(state) == resumed(state, epoch=0) != after
assert set(before) & set(resumed(state)) == {16}
assert not set(after) & set(resumed(state))
assert list(sampler.state_dict()) == ["yielded"]
END
