"""All comparisons, one after the other: ``make bench``; or those that are named: ``python -m lab.benchmarks s3_reads batches``.

At its end it prints the duration of each, missed budgets, and figures that are worse than in the previous run.
"""

import sys
import time
from collections.abc import Sequence
from importlib import import_module

from lab.benchmarks.report import judged

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
    "hedged_reads",
    "amplification",
    "slow_readers",
    "index_million",
    "batches",
    "many",
    "short_circuit",
    "cold_epoch",
)
"""Benchmarks of ``make bench``, in at most 20 minutes on two cores."""
LONG = (
    "peers",
    "hit_floor",
    "weights",
    "shards",
    "formats",
    "closed_forms",
    "accuracy",
    "accuracy_sorted",
    "accuracy_versions",
    "importance",
    "fleet_large",
    "index_large",
)
"""Benchmarks that run only by name: other caches, loaders and formats in separate environments, trainings, hit ratios, counts of
messages, and an index of 12 GB."""


def main(names: Sequence[str]) -> None:
    """Run these benchmarks, and print the closing lines."""
    unknown = [name for name in names if name not in NAMES + LONG]
    if unknown:
        sys.exit(f"no benchmark is called {unknown[0]!r}; there are {', '.join(NAMES + LONG)}")
    took = {}
    for name in names:
        began = time.monotonic()
        import_module(f"lab.benchmarks.{name}").run()
        took[name] = time.monotonic() - began
        print(f"{name} took {took[name]:.0f} s\n", flush=True)
    print("\n".join(closing(took)))


def closing(took: dict[str, float]) -> list[str]:
    """The last lines: seconds by benchmark, budgets that were missed, figures that are worse than before."""
    figures = [each for name in took for each in judged(name)]
    missed = [each for each in figures if not each.ratio.held]
    worse = [each for each in figures if each.worse]
    each = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items())
    lines = [f"{len(took)} benchmarks took {sum(took.values()) / 60:.1f} minutes: {each}"]
    lines.append(
        f"{len(figures) - len(missed)} of {len(figures)} budgets are held" + (", these are not:" if missed else "")
    )
    lines += [f"  {one.benchmark}: {one.ratio.what}: {_plain(str(one.ratio))}" for one in missed]
    if worse:
        lines.append("worse than in the run before:")
    for one in worse:
        assert one.before is not None
        lines.append(f"  {one.benchmark}: {one.ratio.what}: {one.before.value:.2f}, now {one.ratio.value:.2f}")
    return lines


def _plain(markdown: str) -> str:
    return markdown.replace("*", "")


if __name__ == "__main__":
    main(sys.argv[1:] or NAMES)
