"""All drills, one after the other: ``make drill``; or those that are named: ``python -m lab.drill frozen-disk``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lab.drill.faults import DRILLS, Drill
from lab.drill.load import Seen
from lab.drill.world import World, world
from rig.mounts import block_device

MOST = 120.0
"""Seconds after the end of the fault within which clients must be served as before."""


def main() -> int:
    """Run the drills and print a table; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.drill", description="Inject faults into gateways under verified load."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; without: all")
    parser.add_argument("--list", action="store_true", help="name them and do nothing")
    options = parser.parse_args()
    unknown = set(options.names) - {drill.name for drill in DRILLS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(drill.name for drill in DRILLS)}")
    chosen = [drill for drill in DRILLS if drill.name in (options.names or [each.name for each in DRILLS])]
    # The drill itself makes clients leave a silent origin.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    console = Console(width=150)
    table = Table("drill", "what", "right", "refused", "wrong", "slowest", "health", "served again after", "verdict")
    failed = 0
    for drill in chosen:
        if options.list:
            table.add_row(drill.name, drill.what)
            continue
        console.print(f"{drill.name}: {drill.what} ...", end=" ")
        row, findings = perform(drill)
        console.print(row[-1])
        table.add_row(drill.name, drill.what, *row)
        for finding in findings:
            console.print(f"    {finding}", style="red", markup=False)
        failed += bool(findings)
    console.print(table)
    return 1 if failed else 0


def perform(drill: Drill) -> tuple[list[str], list[str]]:
    """Run a drill; return the cells of its row, and its failures."""
    if drill.disk and os.geteuid() != 0:
        return ["", "", "", "", "", "", "left out: needs root"], []
    findings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="larder-drill-", ignore_cleanup_errors=True) as temporary:
        home = Path(temporary)
        with _disk(home, drill) as cache, world(home, drill.nodes, cache, drill.files, **drill.settings) as made:
            drill.clients(made)
            time.sleep(1)
            made.load.window()
            try:
                with drill.fault(made):
                    time.sleep(drill.seconds)
            except AssertionError as finding:
                findings.append(str(finding))
            seen = made.load.window()
            recovered = _recovered(made)
            findings += _judge(drill, seen, recovered)
            findings += [] if not findings else seen.examples
    waited = max((slowest for kind, slowest in seen.slowest.items() if kind != "health"), default=0.0)
    row = [str(seen.count("right")), _refusals(seen), str(seen.count("wrong")), f"{waited:.1f} s"]
    row += [f"{seen.slowest.get('health', 0.0):.1f} s", "-" if recovered is None else f"{recovered:.0f} s"]
    return [*row, "FAILED" if findings else "passed"], findings


def _judge(drill: Drill, seen: Seen, recovered: float | None) -> list[str]:
    found = [] if not seen.count("wrong") else [f"{seen.count('wrong')} wrong answers"]
    kinds = {kind for kind, _ in seen.answers}
    if refused := seen.count("refused", *(kinds - drill.allowed)) if kinds - drill.allowed else 0:
        found.append(f"{refused} requests were refused that must be served")
    slow = {
        kind: slowest for kind, slowest in seen.slowest.items() if slowest > drill.within and kind not in drill.allowed
    }
    found += [f"{kind} took {slowest:.1f} s, {drill.within:.0f} s are allowed" for kind, slowest in slow.items()]
    if seen.slowest.get("health", 0.0) > 2:
        found.append(f"healthz took {seen.slowest['health']:.1f} s")
    if recovered is None:
        found.append(f"clients were not served as before within {MOST:.0f} s")
    return found


def _recovered(made: World) -> float | None:
    """Seconds until every client was served correctly for two seconds in a row; ``None`` if that did not happen."""
    began = time.monotonic()
    while time.monotonic() - began < MOST:
        made.load.window()
        time.sleep(2)
        seen = made.load.window()
        quick = all(slowest < 5 for slowest in seen.slowest.values())
        if seen.answers and quick and not seen.count("refused") and not seen.count("wrong"):
            return max(0.0, time.monotonic() - began - 2)
    return None


def _refusals(seen: Seen) -> str:
    found = {kind: number for (kind, verdict), number in sorted(seen.answers.items()) if verdict == "refused"}
    return ", ".join(f"{number} {kind}" for kind, number in found.items()) or "0"


@contextmanager
def _disk(home: Path, drill: Drill) -> Iterator[Path | None]:
    """The cache directory, on a separate file system if the drill needs one: ext4 on a loop device."""
    if not drill.disk:
        yield None
        return
    size, *options = drill.disk
    with block_device(home / "disk", size, "-m", "0", *options) as mount:
        yield mount / "cache"


if __name__ == "__main__":
    sys.exit(main())
