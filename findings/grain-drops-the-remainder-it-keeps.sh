#!/usr/bin/env bash
# With ShardOptions(drop_remainder=False), the default, one epoch of Grain's IndexSampler drops the remainder all the same: of 10
# records over 3 shards record 3 comes to none, and of 11 two do not. Shard 0 has 4 records and shows 3 in its only epoch; over
# two epochs it shows the fourth, and one of the first three less. Expected: 4, 3 and 3. Seen with grain 0.2.18.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'grain==0.2.18'
"$home/v/bin/python" - <<'END'
import grain.python as grain

class Records:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index

def epoch(records, shard, shuffle=False, epochs=1):
    options = grain.ShardOptions(shard, 3, drop_remainder=False)
    sampler = grain.IndexSampler(records, num_epochs=epochs, shard_options=options, shuffle=shuffle, seed=1)
    return [int(record) for record in grain.DataLoader(data_source=Records(records), sampler=sampler, worker_count=0)]

shards = {records: [epoch(records, shard) for shard in range(3)] for records in (10, 11)}
print(shards, epoch(10, 0, epochs=2))
assert shards[10] == [[0, 1, 2], [4, 5, 6], [7, 8, 9]]
assert sum(map(len, shards[11])) == 9
assert [len(epoch(10, shard, shuffle=True)) for shard in range(3)] == [3, 3, 3]
assert epoch(10, 0, epochs=2) == [0, 1, 2, 3, 0, 1]
END
