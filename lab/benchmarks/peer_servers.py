"""Other caches in front of an S3 store, each configured as its own documentation recommends.

The files of results/peers/NAME are the whole configuration. Words between at signs are filled in; then ``before.sh`` prepares,
``start.sh`` becomes the server, and ``after.sh`` runs the steps that need a running server.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running, started
from lab.pages.rendering import RESULTS
from rig.processes import free_port

PROGRAMS = Path(__file__).parents[2] / "build" / "stores" / "bin"
"""Where ``make store-programs`` installs."""
_LUA_MODULE = "libnginx-mod-http-lua"


@dataclass(frozen=True)
class Peer:
    """A cache to measure beside Larder.

    Attributes:
        name: of its folder.
        title: the name to display.
        version: a command that prints its version.
        needs_redis: its metadata is in Redis, whose processor time is counted with its own.
    """

    name: str
    title: str
    version: tuple[str, ...]
    needs_redis: bool = False


PEERS = (
    Peer("nginx", "nginx proxy_cache", ("nginx", "-v")),
    Peer("nginx-lua", "nginx, SigV4 in Lua", ("dpkg-query", "-W", "-f", "${Version}", _LUA_MODULE)),
    Peer("varnish", "Varnish", ("varnishd", "-V")),
    Peer("rclone", "rclone serve s3", (str(PROGRAMS / "rclone"), "version")),
    Peer("seaweedfs", "SeaweedFS, bucket mounted", (str(PROGRAMS / "weed"), "version")),
    Peer("juicefs", "JuiceFS gateway", (str(PROGRAMS / "juicefs"), "version"), needs_redis=True),
)


def version_of(peer: Peer) -> str:
    """The first number with two dots, or else with one dot, that its command prints."""
    ran = subprocess.run(peer.version, capture_output=True, text=True, check=True)
    match = re.search(r"\d+\.\d+\.\d+", ran.stdout + ran.stderr) or re.search(r"\d+\.\d+", ran.stdout + ran.stderr)
    if match is None:
        raise RuntimeError(f"{peer.name} does not say its version: {ran.stdout}{ran.stderr}")
    return match[0]


@contextmanager
def serving(peer: Peer, directory: Path, origin_port: int, redis_port: int = 0) -> Iterator[Running]:
    """The cache in a new folder, with its bucket ready.

    Args:
        peer: which.
        directory: parent of its folder.
        origin_port: of an S3 server on loopback that takes the key "origin" with "origin-secret", and unsigned reads.
        redis_port: of its Redis, if it needs one.
    """
    folder, port = directory / peer.name, free_port()
    folder.mkdir()
    values = {
        "DIR": str(folder), "PORT": str(port), "ORIGIN": str(origin_port), "REDIS": str(redis_port), "BUCKET": BUCKET,
        "ACCESS_KEY": ACCESS_KEY, "SECRET_KEY": SECRET_KEY, "PROGRAMS": str(PROGRAMS),
    }  # fmt: skip
    _fill(RESULTS / "peers" / peer.name, folder, values)
    _do(folder / "before.sh")
    with started(peer.title, port, ["bash", str(folder / "start.sh")], folder / "output.log") as running:
        _do(folder / "after.sh")
        yield running


def _fill(source: Path, folder: Path, values: dict[str, str]) -> None:
    ports: defaultdict[str, str] = defaultdict(lambda: str(free_port()))
    for path in source.iterdir():
        text = re.sub(r"@([A-Z_]+\d?)@", lambda match: values.get(match[1]) or ports[match[1]], path.read_text())
        (folder / path.name).write_text(text)


def _do(script: Path) -> None:
    if script.exists():
        ran = subprocess.run(["bash", "-e", str(script)], capture_output=True, text=True, timeout=120, check=False)
        if ran.returncode:
            raise RuntimeError(f"{script.parent.name}: {script.name} failed:\n{(ran.stdout + ran.stderr)[-2000:]}")
