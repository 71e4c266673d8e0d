"""A cold epoch over shards in a store 30 ms away: Larder beside WebDataset, MosaicML Streaming and LitData.

Each loader reads the same samples in the format that it recommends, with four workers, straight from the store; Larder reads
WebDataset's TARs through a gateway with an empty cache. The loaders have an environment of their own, because their packages
pin libraries (build/shards). An epoch begins with the start of the workers, and ends with its last batch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, gateway
from lab.benchmarks.shard_readers.data import LENGTH, SAMPLES
from larder import Credentials, digest
from rig.origin import OriginThread
from rig.origin_auth import User
from rig.origin_pace import SendingPace

READERS = Path(__file__).parent / "shard_readers"
HOME = Path(__file__).parents[2] / "build" / "shards"
PACKAGES = ("mosaicml-streaming==0.13.0", "litdata==0.2.76", "webdataset==1.0.2", "awscli==1.44.10", "torch==2.13.0")
LATENCY, BANDWIDTH = 0.03, 125_000_000
ROUNDS = 3
LONGEST = 120
"""Seconds after which an epoch that has not ended counts as failed."""
KEYS = {"AWS_ACCESS_KEY_ID": "origin", "AWS_SECRET_ACCESS_KEY": "origin-secret", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Epoch:
    """Seconds, CPU seconds of the loader (and gateway), and the store's GETs and bytes."""

    seconds: float
    cpu: float
    gets: int
    sent: int


class Store:
    """A distant store in a separate process, with the files of a folder in the bucket."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.port: int = connection.recv()

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def limit(self, *, on: bool) -> None:
        """Answer without limits, or with the benchmark's latency and bandwidth."""
        self._connection.send(on)
        self._connection.recv()

    def asked(self) -> tuple[int, int]:
        """GETs of objects so far, and their bytes."""
        self._connection.send(None)
        gets, sent = self._connection.recv()
        return gets, sent


def _serve(connection: Connection, folder: Path) -> None:
    with OriginThread([User("origin", "origin-secret")]) as store:
        sizes = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = path.relative_to(folder).as_posix()
                store.put(BUCKET, key, path.read_bytes())
                sizes[f"/{BUCKET}/{key}"] = path.stat().st_size
        connection.send(store.port)
        while True:
            try:
                order = connection.recv()
            except EOFError:
                return
            if order is None:
                gets = [
                    seen for seen in store.seen if seen.method == "GET" and seen.raw_path in sizes and seen.status < 300
                ]
                connection.send((len(gets), sum(_bytes(seen.header("range"), sizes[seen.raw_path]) for seen in gets)))
            else:
                store.paces.pop("/", None)
                if order:
                    store.paces["/"] = SendingPace(BANDWIDTH, LATENCY)
                connection.send(None)


def _bytes(header: str, size: int) -> int:
    """The bytes that a GET requests, by its Range header."""
    bounds = re.fullmatch(r"bytes=(\d+)-(\d*)", header)
    return min(size, int(bounds[2] or size - 1) + 1) - int(bounds[1]) if bounds else size


@contextmanager
def distant(folder: Path) -> Iterator[Store]:
    """A store with the files of a folder."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, folder), daemon=True)
    process.start()
    there.close()
    try:
        yield Store(here)
    finally:
        here.close()
        process.join(10)


def installed() -> Path:
    """The Python of the other loaders' environment, which is created once."""
    python = HOME / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME / "venv"], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "install", *PACKAGES], check=True)
        subprocess.run([*pip, "uninstall", "-y", "obstore"], check=True)  # findings/litdata-plain-http.sh
        stub = HOME / "stub" / "torchvision"  # MosaicML imports it for images, which are not decoded here
        for package in ("datasets", "transforms"):
            (stub / package).mkdir(parents=True)
        (stub / "__init__.py").touch()
        (stub / "datasets" / "__init__.py").write_text("class VisionDataset: pass\n")
        (stub / "transforms" / "__init__.py").touch()
        (stub / "transforms" / "functional.py").write_text("to_tensor = None\n")
    return python


def _read(python: Path, reader: str, arguments: list[str], home: Path, **variables: str) -> dict[str, float]:
    """An epoch's cost, as reported by the reader."""
    home.mkdir(parents=True, exist_ok=True)
    path = f"{python.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(HOME / "stub"), "PATH": path, "HOME": str(home), "TMPDIR": str(home)}
    command = [python, "-W", "ignore", READERS / f"{reader}_reader.py", *arguments]
    process = subprocess.Popen(
        command,
        env={**environment, **KEYS, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with its workers, which hold the pipes
        output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{reader} failed, or did not end within {LONGEST} s:\n{errors[-3000:]}")
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


class Readers:
    """The four loaders, each with a cold start."""

    def __init__(self, python: Path, store: Store, shards: list[str], digests: Path) -> None:
        self._python, self._store, self._shards, self._digests = python, store, shards, digests

    def larder(self, home: Path) -> dict[str, float]:
        """Through a gateway with an empty cache."""
        home.mkdir(parents=True)
        with gateway(home, self._store.port) as server:
            before = server.cpu_seconds()
            keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
            arguments = [f"http://127.0.0.1:{server.port}", str(self._digests)]
            figures = _read(Path(sys.executable), "larder", arguments, home / "reader", **keys)
            return {**figures, "cpu": figures["cpu"] + server.cpu_seconds() - before}

    def webdataset(self, home: Path) -> dict[str, float]:
        """Each shard by a process of the AWS CLI, as its documentation shows."""
        return _read(self._python, "webdataset", self._shards, home, AWS_ENDPOINT_URL=self._store.endpoint)

    def mosaicml(self, home: Path) -> dict[str, float]:
        """Shards to a local folder, by boto3."""
        arguments = [f"s3://{BUCKET}/mds", str(home / "local")]
        return _read(self._python, "mosaicml", arguments, home, S3_ENDPOINT_URL=self._store.endpoint)

    def litdata(self, home: Path) -> dict[str, float]:
        """Chunks to a local folder, by boto3."""
        return _read(
            self._python,
            "litdata",
            [f"s3://{BUCKET}/lit", str(home / "local"), self._store.endpoint],
            home,
            LITDATA_ASYNC_CHUNK_PREFETCH="0",
        )


def _epoch(store: Store, read: Callable[[Path], dict[str, float]], home: Path) -> Epoch:
    gets, sent = store.asked()
    figures = read(home)
    after = store.asked()
    return Epoch(figures["seconds"], figures["cpu"], after[0] - gets, after[1] - sent)


def measure(python: Path, directory: Path, failures: Counter[str]) -> dict[str, list[Epoch]]:
    """The epochs of each loader, in turn; ``failures`` counts those that a loader did not finish."""
    data = directory / "data"
    data.mkdir()
    prepare = [python, "-W", "ignore", READERS / "prepare.py", data]
    subprocess.run(prepare, check=True, env={**os.environ, "PYTHONPATH": str(HOME / "stub"), "HOME": str(directory)})
    epochs: dict[str, list[Epoch]] = {}
    with distant(data) as store:
        digests = directory / "shards.parquet"
        keys = Credentials("origin", "origin-secret")
        digest.build(f"s3://{BUCKET}/tar/", digests, endpoint=store.endpoint, credentials=keys, items="tar-samples")
        store.limit(on=True)
        shards = [f"s3://{BUCKET}/tar/{path.name}" for path in sorted((data / "tar").iterdir())]
        readers = Readers(python, store, shards, digests)
        for number in range(ROUNDS):
            for name in ("larder", "webdataset", "mosaicml", "litdata"):
                epoch = _measured(store, getattr(readers, name), directory / f"{name}-{number}", failures)
                print(f"shards: {name}: {epoch}", flush=True)
                if epoch is not None:
                    epochs.setdefault(name, []).append(epoch)
    return epochs


def _measured(
    store: Store, read: Callable[[Path], dict[str, float]], home: Path, failures: Counter[str]
) -> Epoch | None:
    """If another loader does not finish an epoch, that is counted, and the epoch is read again, until it has failed more often
    than there are rounds: then ``None``. Larder's must not fail."""
    while failures[home.name.partition("-")[0]] <= ROUNDS:
        try:
            return _epoch(store, read, home)
        except RuntimeError as error:
            name = home.name.partition("-")[0]
            failures[name] += 1
            home = home.with_name(f"{home.name}-again")
            if name == "larder":
                raise
            reason = next(line for line in reversed(str(error).splitlines()) if line)
            print(f"shards: {name} did not finish an epoch: {reason}", flush=True)
    return None


NAMES = {
    "larder": "Larder",
    "webdataset": "WebDataset 1.0.2",
    "mosaicml": "MosaicML Streaming 0.13.0",
    "litdata": "LitData 0.2.76",
}


def run() -> dict[str, Any]:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary:
        epochs = measure(installed(), Path(temporary), failures := Counter())
    seconds = {name: [epoch.seconds for epoch in of] for name, of in epochs.items()}
    ratios = [
        Ratio.compared(f"a cold epoch over shards: Larder / {NAMES[name]}", seconds["larder"], seconds[name], 1.0)
        for name in seconds
        if name != "larder"
    ]
    data = {
        "samples": SAMPLES,
        "length": LENGTH,
        "latency": LATENCY,
        "bandwidth": BANDWIDTH,
        "rounds": ROUNDS,
        "longest": LONGEST,
        "names": NAMES,
        "failures": failures,
        "epochs": {name: [vars(epoch) for epoch in of] for name, of in epochs.items()},
    }
    write("shards", data, where, ratios)
    return data
