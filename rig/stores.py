"""Stores other than AWS's: SeaweedFS, ``rclone serve s3`` and the gateway of JuiceFS, each a single program, in memory or in a
folder.

``scripts/install-stores`` installs the programs into build/stores, an environment of their own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path

from rig.processes import free_port, speaks_http, stop, wait_until
from rig.radosgw import USERS

PROGRAMS = Path(__file__).resolve().parents[1] / "build/stores/bin"
NAMES = ("seaweedfs", "rclone", "juicefs")
_KEY, _SECRET = USERS[0][1:]
_READY_WITHIN = 120.0


@contextmanager
def store(name: str, home: Path) -> Iterator[str]:
    """A store in a new process, with the first user of radosgw's tests; yields its address."""
    if not PROGRAMS.is_dir():
        raise FileNotFoundError(f"{PROGRAMS}: install the stores by scripts/install-stores {sys.executable}")
    endpoint = f"http://127.0.0.1:{free_port()}"
    folder = home / f"{name}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    command = {"seaweedfs": _seaweedfs, "rclone": _rclone, "juicefs": _juicefs}[name](folder, endpoint)
    with ExitStack() as stack:
        log = stack.enter_context((folder / "output.log").open("wb"))
        process = subprocess.Popen(command, cwd=folder, env=_environment(), stdout=log, stderr=log)
        stack.callback(stop, process)
        wait_until(lambda: speaks_http(endpoint), _READY_WITHIN, f"the start of {name}; see {log.name}")
        yield endpoint


def _environment() -> dict[str, str]:
    return os.environ | {"MINIO_ROOT_USER": _KEY, "MINIO_ROOT_PASSWORD": _SECRET}


def _rclone(folder: Path, endpoint: str) -> Sequence[str]:
    (folder / "data").mkdir()
    keys = f"{_KEY},{_SECRET}"
    address = endpoint.partition("//")[2]
    return [str(PROGRAMS / "rclone"), "--config", "", "serve", "s3", "--addr", address, "--auth-key", keys, "data"]


def _juicefs(folder: Path, endpoint: str) -> Sequence[str]:
    program, catalog = str(PROGRAMS / "juicefs"), f"sqlite3://{folder}/catalog.db"
    files = ["--storage", "file", "--bucket", f"{folder}/data"]
    subprocess.run([program, "format", *files, catalog, "tests"], check=True, capture_output=True)
    settings = ["--no-banner", "--no-usage-report", "--multi-buckets", "--keep-etag", "--object-meta"]
    places = ["--log", f"{folder}/gateway.log", "--cache-dir", f"{folder}/cache", "--backup-meta", "0"]
    return [program, "gateway", *settings, *places, catalog, endpoint.partition("//")[2]]


def _seaweedfs(folder: Path, endpoint: str) -> Sequence[str]:
    rights = ["Admin", "Read", "Write", "List", "Tagging"]
    users = [{"name": "a", "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}], "actions": rights}]
    (folder / "users.json").write_text(json.dumps({"identities": users}))
    ports = {name: str(free_port()) for name in ("master", "volume", "filer")}
    ports |= {f"{name}.grpc": str(free_port()) for name in ("master", "volume", "filer", "s3")}
    parts = {"master": "master.port", "volume": "volume.port", "filer": "filer.port"}
    options = {
        "dir": str(folder), "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "s3.port": endpoint.rpartition(":")[2],
        "s3.config": "users.json", "s3.iam": "false", "s3.port.iceberg": "0", "master.volumeSizeLimitMB": "64",
        "volume.max": "100", "volume.preStopSeconds": "0",
        **{option: ports[name] for name, option in parts.items()},
        **{f"{option}.grpc": ports[f"{name}.grpc"] for name, option in (*parts.items(), ("s3", "s3.port"))},
    }  # fmt: skip
    return [str(PROGRAMS / "weed"), "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]


def version_of(name: str) -> str:
    """The version of a store that tests start."""
    if name == "moto":
        return metadata.version("moto")
    if name == "radosgw":
        return re.search(r"\d+\.\d+\.\d+", subprocess.check_output(["radosgw", "--version"], text=True))[0]  # type: ignore[index]
    (wheel,) = PROGRAMS.parent.glob(f"lib/*/site-packages/{name}_bin-*.dist-info")
    return wheel.name.removesuffix(".dist-info").rpartition("-")[2]
