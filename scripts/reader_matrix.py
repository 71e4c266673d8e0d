"""Try readers of formats against a running gateway and write the table of docs/s3-compatibility.md (`make clients`).

Each script of tests/s3compat/readers reads cold and warm, and after overwrites through the gateway and past it; what reaches the
store is counted on the way. Environments are kept in build/readers; readers whose programs are not on PATH are left out, and a
reader that fails a step keeps its earlier row.
"""

# ruff: noqa: T201 - it says how far it is

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rig.moto import moto_server
from tests.s3compat.reading import RULES, Reader, Seen, Try, course, install, readers
from tests.s3compat.world import world

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/s3-compatibility.md"
PLACE = ROOT / "build/readers"
STEPS = ("cold", "warm", "past")
HEADING = "| client | version | cold | warm | written past |"
_TABLE = re.compile(r"(<!-- measured: readers -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Run the readers that the command line selects; their rows of the page are replaced."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reader", action="append", default=[], help="only this one (by name)")
    parser.add_argument("--dry", action="store_true", help="leave the page as it is")
    chosen = parser.parse_args()
    failed = False
    for reader in readers():
        if chosen.reader and reader.name not in chosen.reader:
            continue
        absent = [program for program in reader.programs if shutil.which(program) is None]
        if absent or not reader.interpreter:
            print(f"{reader.name}: left out: {', '.join(absent) or reader.about['requires-python']} is not on PATH")
            continue
        started = time.monotonic()
        seen = try_reader(reader)
        print(f"{row(reader, seen)}  {time.monotonic() - started:.0f} s", *seen.faults, sep="\n  ", flush=True)
        failed = failed or bool(seen.faults)
        if not (chosen.dry or seen.faults):
            write_row(reader, row(reader, seen))
    return int(failed)


def try_reader(reader: Reader) -> Seen:
    """All steps of one reader, before a new gateway and a new store."""
    seen = Seen()
    try:
        python = install(reader, PLACE / reader.script.stem)
        with (
            tempfile.TemporaryDirectory(prefix="readers-") as home,
            moto_server() as moto,
            world(moto, Path(home), None, record=True, block_size="4MiB", rules=RULES) as made,
        ):
            course(Try(reader, python, made), seen)
    except Exception as error:
        seen.faults.append(f"{type(error).__name__}: {error}")
    return seen


def row(reader: Reader, seen: Seen) -> str:
    """A reader's row of the table."""
    steps = [seen.steps.get(step, "fails") for step in STEPS]
    return f"| {' | '.join([reader.name, reader.version, *steps])} |"


def write_row(reader: Reader, text: str) -> None:
    """Put a reader's row in its place; rows of readers that are gone are left out."""
    page = PAGE.read_text(encoding="utf-8")
    table = _TABLE.search(page)
    assert table is not None
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in table[0].splitlines() if line.startswith("| ")}
    rows[reader.name] = text
    lines = [
        HEADING,
        "|---" * HEADING.count(" | ") + "|---|",
        *(rows[known.name] for known in readers() if known.name in rows),
    ]
    PAGE.write_text(
        _TABLE.sub(lambda match: f"{match[1]}\n" + "\n".join(lines) + f"\n\n{match[2]}", page), encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
