"""The fuzzer for long runs: ``python -m tests.fuzz --minutes 10 --first 0``. It stops at the first finding."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.campaign import campaign
from tests.fuzz.world import Broken, world

ROUND = 250


def main() -> int:
    """Attack until the time is over; 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to go on")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first attack; the same number is the same attack"
    )
    options = parser.parse_args()
    logging.getLogger("aiohttp.server").disabled = True  # the fake origin complains of what it is sent, too
    end = time.monotonic() + 60 * options.minutes
    number, statuses = options.first, Counter[int]()
    with TemporaryDirectory(prefix="larder-fuzz-") as top, world(Path(top)) as target:
        before = target.descriptors(), target.memory()
        while time.monotonic() < end:
            try:
                statuses += campaign(target, number, ROUND)
            except Broken as broken:
                print(broken, file=sys.stderr)
                return 1
            number += ROUND
            print(f"{number - options.first} attacks, {target.descriptors()} descriptors, "
                  f"{target.memory() >> 20} MiB", flush=True)  # fmt: skip
        print(f"answers: {dict(sorted(statuses.items()))}; at the start {before[0]} descriptors, {before[1] >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
