"""All evaluations in turn: ``make evaluate``; or those that are named: ``python -m lab.evaluation multi_job probing``."""

import sys
import time
from importlib import import_module

NAMES = (
    "bound",
    "known_orders",
    "scenarios",
    "multi_job",
    "small_cache",
    "probing",
    "allocation",
    "node_loss",
    "streams",
    "streams_scale",
    "streams_real",
    "importance",
    "importance_real",
    "importance_speed",
    "pipelines",
    "pipelines_cost",
    "pipelines_cost_real",
    "pipelines_real",
    "pipelines_pool",
    "pipelines_marks",
    "convnet",
    "gpu",
    "cores",
)

for name in sys.argv[1:] or NAMES:
    if name not in NAMES:
        sys.exit(f"no evaluation is called {name!r}; there are {', '.join(NAMES)}")
    began = time.monotonic()
    print(f"{name} ...", flush=True)
    import_module(f"lab.evaluation.{name}").run()
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
