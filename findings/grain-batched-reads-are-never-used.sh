#!/usr/bin/env bash
# A data source with Grain's protocol of batched reads (SupportsBatchedReadRandomAccessDataSource) is read one element at a time by
# MapDataset.batch, by IterDataset.batch and by DataLoader: its _getitems is never called.
# Expected: that a batch of such a source is one call. Seen with grain 0.2.18.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'grain==0.2.18'
"$home/v/bin/python" - <<'END'
import grain
from grain._src.python.dataset import base


class Source:
    def __init__(self):
        self.single = self.batched = 0

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.single += 1
        return index

    def _getitems(self, indices):
        self.batched += 1
        return list(indices)


def calls(read):
    source = Source()
    assert isinstance(source, base.SupportsBatchedReadRandomAccessDataSource)
    list(read(source))
    return source.single, source.batched


sampler = grain.samplers.IndexSampler(64, seed=1, shuffle=True, num_epochs=1)
counted = {
    "MapDataset.batch": calls(lambda source: grain.MapDataset.source(source).shuffle(seed=1).batch(8)),
    "IterDataset.batch": calls(lambda source: grain.MapDataset.source(source).to_iter_dataset().batch(8)),
    "DataLoader": calls(
        lambda source: grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.transforms.Batch(8)])
    ),
}
print(counted)
assert set(counted.values()) == {(64, 0)}
END
