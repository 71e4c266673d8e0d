"""Ranges of 64 KiB in a resident object of 1 GiB: the gateway's CPU per request beside nginx with slices of 1 MiB."""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lab.benchmarks.load import raw_request, run_wrk, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import gateway, nginx_slices, origin
from lab.benchmarks.turns import cpu_per_request, in_turn, medians_of

LENGTH = 1024**3
RANGE = 64 * 1024
FILL = 16 * 1024**2
"""A range that fills the blocks of the gateway (policies/reads/granularity.py), and slices of nginx."""
RANGES = 512
CONNECTIONS = 16
REPEATS = 5
BUDGET = 1.7


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        key = make_many(root, "large", 1, LENGTH)[0]
        source = stack.enter_context(origin(directory, root))
        draw = random.Random(1)
        starts = [draw.randrange(LENGTH // RANGE) * RANGE for _ in range(RANGES)]
        sides = {}
        for server in (
            stack.enter_context(nginx_slices(directory, source.port)),
            stack.enter_context(gateway(directory, source.port)),
        ):
            fill = directory / f"{server.name}-fill.lua"
            write_script(fill, [raw_request(server.port, key, (at, at + FILL)) for at in range(0, LENGTH, FILL)])
            for _ in range(3):
                run_wrk(fill, server.port, 4, 2)
            script = directory / f"{server.name}.lua"
            write_script(script, [raw_request(server.port, key, (start, start + RANGE)) for start in starts])
            run_wrk(script, server.port, 4, 1)
            sides[server.name] = partial(cpu_per_request, server, script, CONNECTIONS)
        before = source.cpu_seconds()
        rounds = in_turn(sides, REPEATS)
        if source.cpu_seconds() - before > 0.05:
            raise RuntimeError("the object was not resident: the origin was read")
    medians = medians_of(rounds)
    ratio = Ratio.compared(
        "CPU of a range of 64 KiB in 1 GiB: Larder / nginx slice", rounds["larder"], rounds["nginx"], BUDGET
    )
    data = {"connections": CONNECTIONS, "ranges": RANGES, "repeats": REPEATS, "medians": medians}
    write("object_ranges", data, where, [ratio])


if __name__ == "__main__":
    run()
