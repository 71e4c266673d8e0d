"""The workloads of IGTCache's Table 3 by real S3 clients, scaled down; ``python -m lab.evaluation.workloads`` runs some of them.

That process gets its order as JSON on standard input, and answers with the seconds of each job. Each job has its own access
key, so that the gateway's access log identifies its reads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gateway.sim.streams.reads import ReadOrder, epochs, hot_anywhere, scan, zipf_anywhere, zipf_in_a_row
from lab.evaluation.variants import PLACES, TIME

BUCKET = "lake"
SECRET = "a secret of the evaluation"
REGION = "us-east-1"
BLOCK = 256 * 1024
KB = 1000
ROWS_OF_GROUP = 250
_SILENCE = 60.0
"""Seconds for which a gateway may be silent, as all share one machine."""
_ROW = 1000
"""Bytes of a row of the Parquet files; a row group has about a block."""


@dataclass(frozen=True)
class Files:
    """Files of one size below a prefix, in folders or not."""

    files: int
    size: int
    folders: int = 0
    same_names: bool = False
    parquet: bool = False

    def keys(self, name: str) -> list[str]:
        """In the order of a listing."""
        if not self.folders:
            return [f"{name}/{number:06d}" for number in range(self.files)]
        inner = "{number:06d}" if self.same_names else "{folder:05d}-{number:06d}"
        return [
            f"{name}/{folder:05d}/{inner.format(folder=folder, number=number)}"
            for folder in range(self.folders)
            for number in range(self.files)
        ]

    @property
    def size_of_all(self) -> int:
        """Bytes."""
        return self.files * max(1, self.folders) * self.size


DATA: dict[str, Files] = {
    "AudioMNIST": Files(300, 20 * KB),
    "FashionProduct": Files(400, 30 * KB),
    "AirQuality": Files(150, 100 * KB),
    "ICOADS": Files(PLACES, 30 * KB, folders=200, same_names=True),
    "Bookcorpus": Files(4, 6000 * KB, parquet=True),
    "OPT-125M": Files(1, 12_000 * KB),
    "ImageNet": Files(4, 11 * KB, folders=120),
    "MITPlaces": Files(3, 11 * KB, folders=120),
    "LakeBench": Files(400, 40 * KB),
    "Wiki": Files(10, 4000 * KB),
    "LLaVa-text": Files(1, 10_000 * KB),
    "COCO": Files(300, 16 * KB),
    "one": Files(300, 40 * KB),
    "other": Files(300, 40 * KB),
}
TABLE3 = tuple(name for name in DATA if name not in ("one", "other"))


def make(directory: Path, names: Iterable[str]) -> None:
    """Write the objects as files."""
    for name in names:
        spec, rng = DATA[name], np.random.default_rng(list(name.encode()))
        for key in spec.keys(name):
            path = directory / key
            path.parent.mkdir(parents=True, exist_ok=True)
            if spec.parquet:
                _write_parquet(path, spec.size, rng)
            else:
                path.write_bytes(rng.bytes(spec.size))


def _write_parquet(path: Path, size: int, rng: np.random.Generator) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": [rng.bytes(_ROW) for _ in range(size // _ROW)]})
    pq.write_table(table, path, row_group_size=ROWS_OF_GROUP, compression="NONE", use_dictionary=False)


class Read(NamedTuple):
    """A GET of an object, or of one of its blocks."""

    key: str
    block: int | None = None


@dataclass(frozen=True)
class Where:
    """The gateway that a job reads through, and its access key; reads that begin after ``deadline`` are left out."""

    endpoint: str
    access_key: str
    deadline: float
    cut: list[str]

    def over(self) -> bool:
        """Whether the time is up; records the cut job."""
        if time.monotonic() < self.deadline:
            return False
        self.cut.append(self.access_key)
        return True

    def boto(self, connections: int) -> Any:
        """boto3."""
        from boto3.session import Session
        from botocore.config import Config

        config = Config(
            s3={"addressing_style": "path"}, max_pool_connections=connections, retries={"total_max_attempts": 1}
        )
        return Session(self.access_key, SECRET, region_name=REGION).client(
            "s3", endpoint_url=self.endpoint, config=config
        )

    def fsspec(self) -> Any:
        """s3fs."""
        import s3fs

        return s3fs.S3FileSystem(
            key=self.access_key, secret=SECRET, endpoint_url=self.endpoint, skip_instance_cache=True,
            default_fill_cache=False, default_block_size=BLOCK,
        )  # fmt: skip

    def arrow(self) -> Any:
        """pyarrow's client."""
        import pyarrow.fs

        return pyarrow.fs.S3FileSystem(
            access_key=self.access_key, secret_key=SECRET, endpoint_override=self.endpoint, region=REGION,
            connect_timeout=_SILENCE, request_timeout=_SILENCE,
        )  # fmt: skip


Work = Callable[[Where], None]


@dataclass(frozen=True)
class Job:
    """A job of Table 3: its number there, how it reads, and by which client."""

    name: str
    pattern: str
    client: str
    work: Work


def _boto(reads: Sequence[Read], workers: int, compute: float, where: Where) -> None:
    """boto3 in threads, with a pause after each read."""
    client = where.boto(workers)

    def read(one: Read) -> None:
        if where.over():
            return
        span = {} if one.block is None else {"Range": f"bytes={one.block * BLOCK}-{(one.block + 1) * BLOCK - 1}"}
        client.get_object(Bucket=BUCKET, Key=one.key, **span)["Body"].read()
        time.sleep(compute)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(read, reads))


def _s3fs(keys: Sequence[str], compute: float, where: Where) -> None:
    """s3fs, one object at a time."""
    files = where.fsspec()
    for key in keys:
        if where.over():
            return
        files.cat_file(f"{BUCKET}/{key}")
        time.sleep(compute)


def _s3fs_blocks(key: str, compute: float, where: Where) -> None:
    """A large object through an open file of s3fs, block by block."""
    with where.fsspec().open(f"{BUCKET}/{key}", block_size=BLOCK, cache_type="none") as file:
        while not where.over() and file.read(BLOCK):
            time.sleep(compute)


def _arrow(order: Sequence[tuple[str, int]], compute: float, where: Where) -> None:
    """Row groups of Parquet files by pyarrow."""
    import pyarrow.parquet as pq

    store = where.arrow()
    files = {
        key: pq.ParquetFile(store.open_input_file(f"{BUCKET}/{key}")) for key in dict.fromkeys(k for k, _ in order)
    }
    for key, group in order:
        if where.over():
            return
        files[key].read_row_group(group)
        time.sleep(compute)


class _Objects:
    """A map-style dataset over boto3."""

    def __init__(self, keys: Sequence[str], where: Where, workers: int) -> None:
        self._keys = keys
        self._where = where
        self._client = where.boto(workers)
        self._pool = ThreadPoolExecutor(workers)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitems__(self, indices: list[int]) -> list[int]:
        return list(self._pool.map(self._read, indices))

    def _read(self, index: int) -> int:
        if self._where.over():
            return 0
        return len(self._client.get_object(Bucket=BUCKET, Key=self._keys[index])["Body"].read())


def _torch(keys: Sequence[str], times: int, compute: float, where: Where) -> None:
    """Epochs of the stock DataLoader, shuffled, over boto3 or the connector; a pause for each mini-batch of 8."""
    import torch
    from torch.utils.data import DataLoader

    generator = torch.Generator().manual_seed(len(where.access_key))
    dataset: Any = _Objects(keys, where, 4)
    for _ in range(times):
        for _ in DataLoader(dataset, batch_size=8, shuffle=True, generator=generator, collate_fn=len):
            if where.over():
                return
            time.sleep(compute)


def _connector(keys: Sequence[str], times: int, compute: float, where: Where) -> None:
    """The same with ``S3MapDataset`` of s3torchconnector, whose keys are those of a profile."""
    from s3torchconnector import S3ClientConfig, S3MapDataset
    from torch.utils.data import DataLoader

    dataset = S3MapDataset.from_objects(
        [f"s3://{BUCKET}/{key}" for key in keys], region=REGION, endpoint=where.endpoint,
        transform=lambda reader: len(reader.read()),
        s3client_config=S3ClientConfig(force_path_style=True, profile=where.access_key),
    )  # fmt: skip
    for _ in range(times):
        for _ in DataLoader(dataset, batch_size=8, shuffle=True):
            if where.over():
                return
            time.sleep(compute)


def _aws(prefix: str, where: Where) -> None:
    """``aws s3 cp --recursive``; boto3 in ten threads, as it reads, where it is not installed."""
    program = shutil.which("aws")
    if program is None:
        _boto([Read(key) for key in DATA[prefix].keys(prefix)], 10, 0.0, where)
        return
    names = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    keys = {"AWS_ACCESS_KEY_ID": where.access_key, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": REGION}
    target = Path(os.environ["EVALUATION_SCRATCH"]) / where.access_key
    command = [program, "--endpoint-url", where.endpoint, "s3", "cp", "--recursive", "--only-show-errors"]
    try:
        subprocess.run(
            [*command, f"s3://{BUCKET}/{prefix}/", str(target)],
            env={**names, **keys, "AWS_CONFIG_FILE": os.devnull},
            timeout=max(1.0, where.deadline - time.monotonic()),
            check=True,
        )
    except subprocess.TimeoutExpired:
        where.cut.append(where.access_key)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _ordered(order: ReadOrder, prefix: str, reads: int, seed: int) -> list[Read]:
    keys = DATA[prefix].keys(prefix)
    blocks = -(-DATA[prefix].size // BLOCK)
    places = order(np.random.default_rng(seed), len(keys) * blocks, reads).tolist()
    return [Read(keys[place // blocks], place % blocks if blocks > 1 else None) for place in places]


def _groups(shuffled: int | None) -> list[tuple[str, int]]:
    count = DATA["Bookcorpus"].size // _ROW // ROWS_OF_GROUP
    groups = [(key, number) for key in DATA["Bookcorpus"].keys("Bookcorpus") for number in range(count)]
    if shuffled is None:
        return groups
    rng = np.random.default_rng(5)
    return [groups[place] for _ in range(shuffled) for place in rng.permutation(len(groups)).tolist()]


def table3() -> dict[str, Job]:
    """The jobs of Table 3 by the access keys that they read with. Pauses are computing times, multiplied by ``TIME``."""
    keys = {name: DATA[name].keys(name) for name in TABLE3}
    reads = {name: [Read(key) for key in keys[name]] for name in TABLE3}
    places = [Read(key) for key in keys["ICOADS"] if key.endswith("/000003")]
    connector = importlib.util.find_spec("s3torchconnector") is not None
    train, by = (_connector, "torch, s3torchconnector") if connector else (_torch, "torch, boto3")
    aws = "aws s3 cp" if shutil.which("aws") else "boto3"
    lake, wiki = partial(_ordered, prefix="LakeBench"), partial(_ordered, prefix="Wiki")
    jobs = [
        Job("1 VGG16 training, shuffled in memory", "sequential", aws, partial(_aws, "AudioMNIST")),
        Job("2 VGG16 test", "sequential", "boto3", partial(_boto, reads["FashionProduct"], 1, TIME * 0.05)),
        Job("3 air quality analysis", "sequential", "s3fs", partial(_s3fs, keys["AirQuality"], TIME * 0.1)),
        Job("4 marine data analysis", "sequential", "boto3", partial(_boto, places, 1, TIME * 0.1)),
        Job("5 data preprocessing", "sequential", "pyarrow", partial(_arrow, _groups(None), TIME * 0.2)),
        Job("6 checkpoint loading", "sequential", "s3fs", partial(_s3fs_blocks, keys["OPT-125M"][0], 0.0)),
        Job("7 OPT-125M finetuning", "random", "pyarrow", partial(_arrow, _groups(3), TIME * 0.3)),
        Job("8 ResNet-50 test", "sequential", "boto3", partial(_boto, reads["ImageNet"], 1, TIME * 0.03)),
        Job("9 ResNet-50 training", "random", by, partial(train, keys["ImageNet"], 3, TIME * 0.3)),
        Job("10 AlexNet training", "random", by, partial(train, keys["ImageNet"], 2, TIME * 0.15)),
        Job("11 AlexNet test", "sequential", "boto3", partial(_boto, reads["MITPlaces"], 1, TIME * 0.02)),
        Job("12 ResNet-50 training, places", "random", by, partial(train, keys["MITPlaces"], 3, TIME * 0.3)),
        Job("13 AlexNet training, places", "random", by, partial(train, keys["MITPlaces"], 2, TIME * 0.15)),
        Job("14 table join", "skewed", "boto3", partial(_boto, lake(zipf_anywhere, reads=700, seed=14), 2, TIME * 0.1)),
        Job("15 table union", "skewed", "boto3", partial(_boto, lake(zipf_in_a_row, reads=700, seed=15), 2, TIME * 0.1)),
        Job("16 RAG, large", "skewed", "boto3", partial(_boto, wiki(zipf_anywhere, reads=500, seed=16), 2, TIME * 0.2)),
        Job("17 RAG, small", "skewed", "boto3", partial(_boto, wiki(hot_anywhere, reads=300, seed=17), 1, TIME * 0.2)),
        Job("18 LLaVa text", "sequential", "s3fs", partial(_s3fs_blocks, keys["LLaVa-text"][0], TIME * 0.5)),
        Job("18 LLaVa images", "random", "torch, boto3", partial(_torch, keys["COCO"], 2, TIME * 0.3)),
    ]  # fmt: skip
    return {f"JOB{number:02d}": job for number, job in enumerate(jobs)}


def prefetch() -> dict[str, Job]:
    """The jobs of Figure 9."""
    return {key: job for key, job in table3().items() if job.name.split()[0] in ("2", "3", "4", "6")}


def eviction(order: ReadOrder) -> dict[str, Job]:
    """One job of Figure 10: eight times as many reads as there are objects."""
    work = partial(_boto, _ordered(order, "one", 8 * DATA["one"].files, 10), 4, 0.0)
    return {"JOB00": Job("", "", "boto3", work)}


def lifetime() -> dict[str, Job]:
    """The jobs of Figure 11: one ends, the other continues until its time is up."""
    ended = partial(_boto, _ordered(epochs, "one", 2 * DATA["one"].files, 1), 4, TIME * 0.2)
    other = partial(_boto, _ordered(epochs, "other", 100 * DATA["other"].files, 2), 4, TIME * 0.2)
    return {"JOB00": Job("ended", "random", "boto3", ended), "JOB01": Job("other", "random", "boto3", other)}


SETS: dict[str, Callable[[], dict[str, Job]]] = {
    "table3": table3,
    "prefetch": prefetch,
    "random": partial(eviction, epochs),
    "skewed": partial(eviction, zipf_anywhere),
    "scan": partial(eviction, scan),
    "lifetime": lifetime,
}


def _profiles(scratch: Path, keys: Iterable[str]) -> Path:
    """A file with a profile for each access key: jobs are threads, so environment variables would give all of them the same
    key."""
    file = scratch / "credentials"
    names = (f"[{key}]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n" for key in keys)
    file.write_text("".join(names), encoding="utf-8")
    return file


def _main() -> None:
    order = json.loads(sys.stdin.readline())
    jobs, cut, failed, began = SETS[order["set"]](), list[str](), list[str](), time.monotonic()
    os.environ["EVALUATION_SCRATCH"] = order["scratch"]
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(_profiles(Path(order["scratch"]), jobs))
    deadline = began + order["limit"]

    def run(key: str, start: float) -> tuple[str, float]:
        time.sleep(start)
        at = time.monotonic()
        try:
            jobs[key].work(Where(order["endpoint"], key, deadline, cut))
        except Exception:  # a client that gives up ends only its own job
            traceback.print_exc()
            failed.append(key)
        return key, time.monotonic() - at

    with ThreadPoolExecutor(len(jobs)) as pool:
        seconds = dict(pool.map(run, jobs, order["starts"]))
    print(json.dumps({"seconds": seconds, "cut": sorted(set(cut)), "failed": failed}))


if __name__ == "__main__":
    _main()
