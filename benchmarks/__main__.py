"""All comparisons, one after the other: ``make bench``; or those that are named: ``python -m benchmarks s3_reads batches``."""

import sys
from importlib import import_module

NAMES = (
    "routes",
    "start",
    "s3_reads",
    "object_ranges",
    "tail_latency",
    "workers",
    "uploads",
    "fleet_reads",
    "large_reads",
    "streams",
    "cold_path",
    "amplification",
    "slow_readers",
    "index_million",
    "batches",
    "short_circuit",
    "closed_forms",
    "cold_epoch",
    "accuracy",
    "accuracy_sorted",
    "importance",
)

for name in sys.argv[1:] or NAMES:
    if name not in NAMES:
        sys.exit(f"no benchmark is called {name!r}; there are {', '.join(NAMES)}")
    import_module(f"benchmarks.{name}").run()
