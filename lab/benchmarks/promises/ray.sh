#!/usr/bin/env bash
# Ray Data, which has no states: uneven ranks, and states loaded with other workers, ranks or seeds, and at an epoch's end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'ray[data]==2.60.0'
cat >"$home/program.py" <<'END'
import os
import threading

os.environ.update(RAY_DATA_DISABLE_PROGRESS_BARS="1", RAY_USAGE_STATS_ENABLED="0")
import ray  # noqa: E402
from counts import SAMPLES, check, over_ranks  # noqa: E402


def shares(ranks, equal):
    iterators = ray.data.range(SAMPLES, override_num_blocks=4).streaming_split(ranks, equal=equal)
    rows = [[] for _ in iterators]

    def read(rank):
        rows[rank] = [int(row["id"]) for row in iterators[rank].iter_rows()]

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return over_ranks(rows)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=100_000_000)
    answers = {
        "3 ranks, equal": shares(3, equal=True),
        "3 ranks": shares(3, equal=False).split()[1],
        "states": str(hasattr(ray.data.range(SAMPLES).iterator(), "state_dict")),
    }
    ray.shutdown()
    expected = {
        "3 ranks, equal": "6/6/6 2 missing",
        "3 ranks": "exact",
        "states": "False",
    }
    check(answers, expected)
END
PYTHONPATH=$here TMPDIR=$home HOME=$home "$home/v/bin/python" -W ignore "$home/program.py"
