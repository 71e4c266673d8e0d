"""Model weights from a warm gateway on the same machine: as open files of its cache, by GET, and by Run:ai Model Streamer.

The streamer has an environment of its own (build/weights).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, gateway, nginx_cache, origin
from lab.benchmarks.turns import in_turn, medians_of
from larder import Credentials, open_objects
from larder.http.s3 import S3

FILES, LENGTH, REPEATS = 4, 512 * 1024**2, 5
NOBODY = 65534
PIECE = 64 * 1024**2
NAMES = [f"shard-{number}.safetensors" for number in range(FILES)]
WAYS = ("local files", "open_objects", "GET")
HOME = Path(__file__).parents[2] / "build" / "weights"
PACKAGES = ("runai-model-streamer[s3]==0.17.1", "torch==2.13.0", "safetensors==0.8.0", "numpy==2.4.6")
BUDGET, STREAMED = 0.9, 1.0


def _write_weights(path: Path) -> None:
    """A file with one tensor of random bytes that is LENGTH long."""
    names = {"layer": {"dtype": "U8", "shape": [LENGTH], "data_offsets": [0, LENGTH]}}
    head = json.dumps(names).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _ in range(LENGTH // PIECE):
            file.write(os.urandom(PIECE))


def installed() -> Path:
    """The Python of the streamer's environment, which is created once."""
    python = HOME / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "-q", "install", *PACKAGES], check=True)
    return python


def _local(folder: str, name: str) -> int:
    with open(f"{folder}/{name}", "rb") as file:
        return len(file.read())


def _read(way: str, endpoint: str, folder: str) -> int:
    """The number of bytes read."""
    if way == "local files":
        return sum(_local(folder, name) for name in NAMES)
    keys = Credentials(ACCESS_KEY, os.environ["BENCH_SECRET"])
    if way == "GET":
        store = S3(endpoint, credentials=keys)
        with ThreadPoolExecutor(FILES) as pool:
            return sum(pool.map(lambda name: len(store.get(BUCKET, name)), NAMES))
    objects = open_objects([(BUCKET, name) for name in NAMES], endpoint=endpoint, credentials=keys)
    reasons = {entry.reason for entry in objects}
    if reasons != {""}:
        raise RuntimeError(f"no open files: {reasons}")
    return sum(len(entry.read()) for entry in objects)


def _measure(way: str, endpoint: str, folder: Path) -> float:
    """Seconds that a way takes, in a process of another user."""
    command = [sys.executable, "-m", "lab.benchmarks.weights", "--read", way, endpoint, str(folder)]
    return _seconds(way, command, {"BENCH_SECRET": SECRET_KEY}, NOBODY)


def _streamed(python: Path, endpoint: str) -> float:
    """Seconds that the streamer takes with the files of an endpoint."""
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": "us-east-1"}
    command = [
        str(python),
        str(Path(__file__).with_name("weights_streamer.py")),
        *(f"s3://{BUCKET}/{n}" for n in NAMES),
    ]
    return _seconds(endpoint, command, {**keys, "AWS_ENDPOINT_URL": endpoint})


def _seconds(way: str, command: list[str], variables: dict[str, str], user: int | None = None) -> float:
    """The seconds that a reader reports.

    Raises:
        RuntimeError: it failed, or read less than all files.
    """
    reader = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, user=user, group=user
    )
    if reader.returncode:
        raise RuntimeError(f"{way} failed:\n{reader.stderr[-2000:]}")
    report = json.loads(reader.stdout.splitlines()[-1])
    if report["bytes"] < FILES * LENGTH:
        raise RuntimeError(f"{way}: {report['bytes']} bytes")
    return float(report["seconds"])


def run() -> None:
    """Measure and write the results."""
    where, python = machine(), installed()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory = Path(temporary)
        directory.chmod(0o755)
        root = directory / "objects"
        (root / BUCKET).mkdir(parents=True)
        for name in NAMES:
            _write_weights(root / BUCKET / name)
        source = stack.enter_context(origin(directory, root))
        socket = directory / "socket"
        socket.mkdir(mode=0o755)
        server = stack.enter_context(gateway(directory, source.port, unix_socket=str(socket / "s")))
        nginx = stack.enter_context(nginx_cache(directory, source.port))
        endpoint = f"http://127.0.0.1:{server.port}"
        sides: dict[str, Callable[[], float]] = {way: partial(_measure, way, endpoint, root / BUCKET) for way in WAYS}
        sides["Run:ai through Larder"] = partial(_streamed, python, endpoint)
        sides["Run:ai through nginx"] = partial(_streamed, python, f"http://127.0.0.1:{nginx.port}")
        for _ in range(2):
            _measure("open_objects", endpoint, root / BUCKET)
            _measure("GET", f"http://127.0.0.1:{nginx.port}", root / BUCKET)
        rounds = in_turn(sides, REPEATS)
    medians, size = medians_of(rounds), FILES * LENGTH / 1e9
    rates = {way: [size / seconds for seconds in taken] for way, taken in rounds.items()}
    opened = Ratio.compared(
        "model weights as open files / local files, bytes per second", rates["open_objects"], rates["local files"], BUDGET,
        at_least=True,
    )  # fmt: skip
    streamed = Ratio.compared(
        "model weights by Run:ai Model Streamer: through Larder / nginx, bytes per second",
        rates["Run:ai through Larder"], rates["Run:ai through nginx"], STREAMED, at_least=True,
    )  # fmt: skip
    data = {"files": FILES, "length": LENGTH, "repeats": REPEATS, "medians": medians}
    write("weights", data, where, [opened, streamed])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        begin = time.perf_counter()
        count = _read(*sys.argv[2:])
        print(json.dumps({"bytes": count, "seconds": time.perf_counter() - begin}))
    else:
        run()
