"""Cold GETs of 64 MiB by curl: through the gateway, and from the origin itself."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running, gateway, origin
from lab.benchmarks.turns import in_turn, medians_of

LENGTH = 64 * 1024**2
REPEATS = 5
LIMITS = {"100 MB/s": 100 * 10**6, "unlimited": 0}
JUDGED = "100 MB/s"
BUDGET = 0.95


def _curl(server: Running, keys: Iterator[str]) -> float:
    """Bytes per second of one object."""
    url = f"http://127.0.0.1:{server.port}/{BUCKET}/{next(keys)}"
    command = ["curl", "-sS", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3", "-u", f"{ACCESS_KEY}:{SECRET_KEY}"]
    command += [
        "-H",
        "x-amz-content-sha256: UNSIGNED-PAYLOAD",
        "-o",
        "/dev/null",
        "-w",
        "%{size_download} %{time_total}",
        url,
    ]
    size, seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if int(size) != LENGTH:
        raise RuntimeError(f"{server.name}: {size} of {LENGTH} bytes came")
    return LENGTH / float(seconds)


def run() -> None:
    """Measure and write the results."""
    where = machine()
    rounds = {}
    for name, limit in LIMITS.items():
        with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
            directory, root = Path(temporary), Path(temporary) / "objects"
            keys = make_many(root, "cold", REPEATS, LENGTH)
            source = stack.enter_context(origin(directory, root, limit))
            server = stack.enter_context(gateway(directory, source.port))
            sides = {each.name: partial(_curl, each, iter(keys)) for each in (source, server)}
            rounds[name] = in_turn(sides, REPEATS)
    medians = {name: medians_of(of) for name, of in rounds.items()}
    ratio = Ratio.compared(
        "throughput of a cold GET of 64 MiB: Larder / curl from the origin",
        rounds[JUDGED]["larder"],
        rounds[JUDGED]["origin"],
        BUDGET,
        at_least=True,
    )
    write("large_reads", {"repeats": REPEATS, "judged": JUDGED, "medians": medians}, where, [ratio])


if __name__ == "__main__":
    run()
