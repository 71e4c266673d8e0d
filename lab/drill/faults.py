"""The drills: each a fault, how the gateways are set up for it, and what clients may notice.

``allowed`` names the kinds of request that may be refused while the fault lasts; no answer may ever be wrong. ``within`` is the
longest time of any other request, in seconds.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.store.files.threads import HUNG_AFTER
from gateway.store.shared.table_file import table_of
from lab.drill.load import Act, batch, reads, writes
from lab.drill.world import World, usual_clients
from rig.clients import get, workers_of
from rig.mounts import filled, hung, locked_index
from rig.processes import wait_until
from rig.world import blob_path

Fault = Callable[[World], AbstractContextManager[None]]
Clients = Callable[[World], None]

FRESH = {"match": "**", "freshness": "1s", "grant": "1s", "stale_if_error": "1h"}
"""A rule by which the origin is asked about every object again after a second."""


@dataclass(frozen=True)
class Drill:
    """One fault.

    Attributes:
        name: the argument of ``python -m lab.drill NAME``.
        what: the fault, in a few words.
        fault: injects it, and ends it at the end of its block.
        nodes: gateways.
        seconds: how long it lasts under load.
        allowed: kinds of request that may be refused meanwhile.
        within: seconds that any other request may take.
        disk: size and mkfs options of the file system that the cache is on; empty: that of the temporary directory.
        files: limit of descriptors of each gateway process; 0 leaves it unchanged.
        settings: of the gateways.
        clients: adds the readers and writers.
    """

    name: str
    what: str
    fault: Fault
    nodes: int = 1
    seconds: float = 10.0
    allowed: frozenset[str] = frozenset()
    within: float = 10.0
    disk: tuple[str, ...] = ()
    files: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    clients: Clients = usual_clients


# --- the cache disk


@contextmanager
def frozen_disk(world: World) -> Iterator[None]:
    """Every write to the cache's file system hangs."""
    with hung(_mount_of(world.cache)):
        probe = threading.Thread(target=_takes_files, args=(world.cache,))
        probe.start()
        yield
        assert probe.is_alive(), "the disk still takes files"
        assert _bypasses_the_disk(world), "the gateway still uses the disk"
    probe.join()


@contextmanager
def full_disk(world: World) -> Iterator[None]:
    """Another process writes until no byte is left."""
    mount = _mount_of(world.cache)
    with filled(mount):
        free = os.statvfs(mount)
        assert free.f_bavail * free.f_frsize < MIB, "the disk was not filled"
        yield


@contextmanager
def read_only_disk(world: World) -> Iterator[None]:
    """The file system turns read-only for good, as after an error. Setting the device read-only would stop no write."""
    mount = str(_mount_of(world.cache))
    subprocess.run(["mount", "-o", "remount,abort", mount], check=True, capture_output=True)
    assert not _takes_files(world.cache), "the disk is still written"
    yield
    assert world.gateways[0].metric("larder_disk_state") > 1, "the gateway still uses the disk"


@contextmanager
def index_locked(world: World) -> Iterator[None]:
    """Another process holds the index's lock."""
    with locked_index(world.cache):
        assert _is_locked(world.cache / "index.db"), "the index is not locked"
        yield
        assert _bypasses_the_disk(world), "the gateway still uses the disk"


@contextmanager
def immovable_blob(world: World) -> Iterator[None]:
    """One blob's file cannot be unlinked, and the cache must evict."""
    blob = blob_path(world.cache, world.cold.bodies[0])
    wait_until(blob.exists, 30, "the first cold blob")
    subprocess.run(["chattr", "+i", str(blob)], check=True)
    try:
        yield
        held = sum(path.stat().st_blocks * 512 for path in (world.cache / "blobs").glob("*/*") if path.is_file())
        assert held < 6_000_000, f"the cache holds {held} bytes, its capacity is 4 MB: eviction has stopped"
    finally:
        subprocess.run(["chattr", "-i", str(blob)], check=True)


@contextmanager
def scarce_disk(world: World) -> Iterator[None]:
    """The file system itself is the fault: the cache must keep caching in the remaining space."""
    gateway = world.gateways[0]
    yield
    share = gateway.metric("larder_cache_bytes") / gateway.metric("larder_cache_capacity_bytes")
    assert share < 0.5, f"{share:.0%} of the capacity is full: the file system was not what was scarce"
    assert gateway.metric("larder_evicted_blobs_total"), "nothing was evicted: the file system was not full"
    path = world.cold.path(len(world.cold.rows) - 1)
    states = [get(gateway, path).cache for _ in range(3)]
    assert states[-1] == "HIT", f"a read, repeated, gives {states}: the cache stores nothing any more"


@contextmanager
def damaged_table(world: World) -> Iterator[None]:
    """The table that the workers map is truncated: each dies at its next access, and its successor must complete it."""
    table = table_of(world.cache)
    whole, workers = table.stat(), set(workers_of(world.gateways[0]))
    assert whole.st_size, f"{table} is no table"
    os.truncate(table, 0)
    yield
    now = table.stat()
    assert not workers & set(workers_of(world.gateways[0])), "a worker outlived its table: it does not use this file"
    assert (now.st_size, now.st_ino) == (whole.st_size, whole.st_ino), f"{table} was not completed in place"


# --- the origin


@contextmanager
def silent_origin(world: World) -> Iterator[None]:
    """The origin accepts connections but does not answer."""
    with ExitStack() as stack:
        for link in world.origin_links:
            stack.enter_context(link.silent())
        yield


@contextmanager
def no_origin(world: World) -> Iterator[None]:
    """The origin refuses connections."""
    with ExitStack() as stack:
        for link in world.origin_links:
            stack.enter_context(link.cut())
        yield


@contextmanager
def one_without_origin(world: World) -> Iterator[None]:
    """One of three nodes cannot reach the origin."""
    with world.origin_links[1].cut():
        yield


@contextmanager
def one_in_a_black_hole(world: World) -> Iterator[None]:
    """For one of three nodes, the origin does not answer."""
    with world.origin_links[1].silent():
        yield


def clients_of_the_others(world: World) -> None:
    """Add only clients of the healthy nodes; the faulty node is the home of a third of the objects."""
    others = [gateway for number, gateway in enumerate(world.gateways) if number != 1]
    world.load.add("warm", reads(others, world.warm))
    world.load.add("cold", reads(others, world.cold))
    world.load.add("batch", _cold_batches(others, world))
    world.load.add("write", writes(others[0], others, "written"))


def _cold_batches(gateways: list[Any], world: World) -> Act:
    numbers = itertools.count()

    def act(number: int) -> str:
        start, items = next(numbers) * 8, len(world.cold.rows)
        indices = [(start + place) % items for place in range(8)]
        return batch(gateways[number % len(gateways)], world.cold, indices)

    return act


# --- Redis and the fleet


@contextmanager
def one_without_redis(world: World) -> Iterator[None]:
    """One of three nodes loses Redis; its clients write, and read their own writes."""
    with world.redis_links[0].cut():
        yield


@contextmanager
def flapping_redis(world: World) -> Iterator[None]:
    """Redis dies and comes back, again and again."""
    assert world.redis is not None
    over = threading.Event()

    def flap() -> None:
        assert world.redis is not None
        while not over.wait(1.0):
            world.redis.kill()
            over.wait(0.7)
            world.redis.start()

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for gateway in world.gateways:
        traces = [line for line in gateway.log.read_text().splitlines() if "Traceback" in line]
        assert not traces, f"a traceback in the log: {traces[0]}"


@contextmanager
def hanging_redis(world: World) -> Iterator[None]:
    """Redis hangs."""
    assert world.redis is not None
    with world.redis.paused():
        yield


@contextmanager
def killed_node(world: World) -> Iterator[None]:
    """One of three nodes is killed, and started again."""
    world.gateways[1].kill()
    yield
    world.restart(1)


@contextmanager
def killed_worker(world: World) -> Iterator[None]:
    """Workers of a gateway are killed one by one, each while the others serve."""
    over, gateway, killed = threading.Event(), world.gateways[0], 0

    def kill() -> None:
        nonlocal killed
        while not over.wait(1.0):
            if gateway.log.read_text().count("Application startup complete") == world.settings[0].workers + killed:
                os.kill(workers_of(gateway)[0], signal.SIGKILL)
                killed += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert killed > 1, f"{killed} workers were killed"


# --- strangers, restarts


@contextmanager
def idle_strangers(world: World) -> Iterator[None]:
    """Strangers open more connections than the gateway may have descriptors, and send nothing."""
    counter = "larder_unauthenticated_connections_closed_total"
    before = world.gateways[0].metric(counter)
    with ExitStack() as stack:
        for _ in range(400):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(2)
            with suppress(OSError):
                connection.connect(("127.0.0.1", world.gateways[0].port))
        yield
    assert world.gateways[0].metric(counter) > before, "no stranger was turned away"


class Balancer:
    """Sends each request to a gateway whose last readyz answer was 200, like a load balancer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ready = [True] * len(world.gateways)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Balancer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def act(self, number: int) -> str:
        """Read through a gateway that is ready."""
        ready = [gateway for gateway, well in zip(self._world.gateways, self._ready, strict=True) if well]
        return reads([ready[number % len(ready)]], self._world.warm)(number) if ready else "no gateway is ready"

    def _poll(self) -> None:
        while not self._over.wait(0.1):
            for number, gateway in enumerate(self._world.gateways):
                connection = gateway.connection()
                connection.timeout = 2
                try:
                    connection.request("GET", "/-/readyz")
                    self._ready[number] = connection.getresponse().status == 200
                except OSError:
                    self._ready[number] = False
                finally:
                    connection.close()


@contextmanager
def rolling_restart(world: World) -> Iterator[None]:
    """Two gateways behind a balancer are restarted, one by one."""
    with Balancer(world) as balancer:
        for _ in range(3):
            world.load.add("balanced", balancer.act, 0.005)
        yield
        for number in range(len(world.gateways)):
            assert world.gateways[number].stop() == 0
            world.restart(number)
            time.sleep(1)


def no_clients(_world: World) -> None:
    """Add no clients: the fault has its own."""


def _takes_files(folder: Path) -> bool:
    """Whether a file can be created in a folder."""
    probe = folder / "drill"
    try:
        with probe.open("wb") as file:
            os.fsync(file.fileno())
        probe.unlink()
    except OSError:
        return False
    return True


def _is_locked(index: Path) -> bool:
    """Whether another connection holds the lock of a SQLite file for writing."""
    with closing(sqlite3.connect(index, timeout=0)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
    return False


def _bypasses_the_disk(world: World) -> bool:
    """Whether the first gateway reports that it bypasses its disk."""
    return b"disk-down" in get(world.gateways[0], "/-/readyz").body


def _mount_of(path: Path) -> Path:
    while not os.path.ismount(path):
        path = path.parent
    return path


MIB = 1024**2
LOOP = ("96M",)
DRILLS = (
    Drill("frozen-disk", "the cache disk hangs", frozen_disk, disk=LOOP, seconds=15, within=HUNG_AFTER + 5),
    Drill("full-disk", "the cache disk is filled by somebody else", full_disk, disk=LOOP),
    Drill("read-only-disk", "the cache disk turns read-only", read_only_disk, disk=(*LOOP, "-e", "remount-ro")),
    Drill("locked-index", "another process holds the lock of index.db", index_locked, seconds=15),
    Drill(
        "immovable-blob",
        "a blob's file cannot be unlinked while the cache must evict",
        immovable_blob,
        disk=LOOP,
        settings={"capacity": "4MB"},
    ),
    Drill(
        "few-inodes",
        "the file system has inodes for a fraction of the blobs",
        scarce_disk,
        disk=("96M", "-N", "500"),
    ),
    Drill("small-disk", "the capacity is larger than the file system, and reserve is 0", scarce_disk, disk=("12M",)),
    Drill(
        "damaged-table",
        "the table of generations is truncated",
        damaged_table,
        allowed=frozenset({"warm", "cold", "batch", "write", "health"}),
        settings={"workers": 2},
    ),
    Drill(
        "silent-origin",
        "the origin hangs; cached objects are stale",
        silent_origin,
        allowed=frozenset({"cold", "write"}),
        settings={"rules": (FRESH,)},
        seconds=15,
    ),
    Drill(
        "no-origin",
        "the origin refuses connections; cached objects are stale",
        no_origin,
        allowed=frozenset({"cold", "write"}),
        settings={"rules": (FRESH,)},
    ),
    Drill(
        "one-without-origin",
        "one of three nodes has lost its origin",
        one_without_origin,
        nodes=3,
        clients=clients_of_the_others,
        seconds=15,
    ),
    Drill(
        "one-in-a-black-hole",
        "the origin of one of three nodes hangs",
        one_in_a_black_hole,
        nodes=3,
        clients=clients_of_the_others,
        seconds=20,
    ),
    Drill("one-without-redis", "one of three nodes has lost Redis", one_without_redis, nodes=3, seconds=15),
    Drill("flapping-redis", "Redis dies and comes back every two seconds", flapping_redis, nodes=3, seconds=15),
    Drill("hanging-redis", "Redis stands still", hanging_redis, nodes=3),
    Drill(
        "killed-node",
        "one of three nodes is killed and comes back",
        killed_node,
        nodes=3,
        clients=clients_of_the_others,
    ),
    Drill(
        "killed-worker",
        "workers of one gateway are killed",
        killed_worker,
        allowed=frozenset({"warm", "cold", "batch", "write", "health"}),
        settings={"workers": 2},
        seconds=30,
    ),
    Drill("idle-strangers", "strangers use up the descriptors", idle_strangers, files=256),
    Drill(
        "rolling-restart",
        "two gateways behind a balancer are restarted",
        rolling_restart,
        nodes=2,
        seconds=1,
        settings={"server": {"drain_notice": "1s"}},
        clients=no_clients,
    ),
)
