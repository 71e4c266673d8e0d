"""kill -9 at any moment. Afterwards no truncated object is served, and index and disk agree."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

from gateway.store.shared.table_file import table_of
from rig.clients import Client, children, client_of_each_worker, finish, get, gone, workers_of
from rig.gateways import Running, Settings, gateway
from rig.processes import wait_until
from rig.world import (
    KIB,
    MIB,
    SOON,
    Origin,
    await_index_equals_disk,
    blob_path,
    blobs_of,
    content,
    doomed,
    eventually,
    used_by,
    verify,
)


def kill(pid: int) -> None:
    """kill -9, and wait for the end."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), SOON, f"the end of process {pid}")


def objects(origin: Origin, bucket: str, sizes: list[int]) -> dict[str, bytes]:
    """Objects of these sizes at the origin, by path."""
    paths = {f"/{bucket}/{number}": content(size, (bucket, number)) for number, size in enumerate(sizes)}
    for path, body in paths.items():
        origin.put(path, body)
    return paths


def assert_sound(running: Running, cache: Path, bodies: dict[str, bytes]) -> None:
    """Index and disk agree, no file is left over, ``verify`` is content, and every object is read right, twice."""
    await_index_equals_disk(cache)
    wait_until(lambda: not list((cache / "tmp").iterdir()), SOON, "an empty tmp/")
    assert "no problem found" in verify(running)
    for path, body in bodies.items():
        assert [get(running, path).body == body for _ in range(2)] == [True, True]


def test_killed_in_the_middle_of_fills(tmp_path, origin):
    """After the restart the cache has exactly the objects that were complete; partial fills are gone."""
    settings = Settings(origin.endpoint, tmp_path / "cache")
    bodies = objects(origin, "fills", [300 * KIB, 400 * KIB, 5 * MIB // 2])
    whole = {"/fills/whole": origin.put("/fills/whole", content(200 * KIB, "whole"))}
    with ExitStack() as stack:
        running = stack.enter_context(doomed(settings, tmp_path / "home"))
        get(running, "/fills/whole")
        # In the middle of a block: at its end it depends on the next byte whether a file is being written.
        hangs = [origin.hang(path, after=len(body) // 2) for path, body in bodies.items()]
        readers = [stack.enter_context(Client(running.endpoint)) for _ in bodies]
        for reader, path in zip(readers, bodies, strict=True):
            reader.send("GET", path)
        for hang in hangs:
            hang.gate.arrival.result(30)
        # The first block of the large object is complete and is kept, the second has begun.
        wait_until(lambda: blob_path(settings.cache, bodies["/fills/2"][:MIB]).exists(), SOON, "the first block")
        wait_until(lambda: len(list((settings.cache / "tmp").iterdir())) == 3, SOON, "three files being written")
        kill(running.process.pid)
        for hang in hangs:
            hang.gate.open()
        assert not any(reader.answer().whole for reader in readers)
    with gateway(settings, tmp_path / "home") as running:
        assert get(running, "/fills/whole").cache == "HIT"
        assert_sound(running, settings.cache, bodies | whole)


def test_killed_in_the_middle_of_evictions(tmp_path, origin):
    """A constantly evicting cache that is killed at a random moment is consistent afterwards."""
    settings = Settings(origin.endpoint, tmp_path / "cache", capacity="2MB", block_size="64KiB")
    bodies = objects(origin, "evictions", [50 * KIB] * 100)
    with doomed(settings, tmp_path / "home") as running, Client(running.endpoint) as client:
        for number, (path, body) in enumerate(bodies.items()):
            assert client.get(path).body == body
            if number > 50 and running.metric("larder_evicted_blobs_total") > 10:
                break
        client.send("GET", "/evictions/99")
        kill(running.process.pid)
    with gateway(settings, tmp_path / "home") as running:
        assert blobs_of(settings.cache)
        assert_sound(running, settings.cache, bodies)


def test_the_embedded_redis_ends_with_its_gateway(tmp_path, origin):
    """No process of a killed gateway is left: neither its Redis nor its workers."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
    with doomed(settings, tmp_path / "home") as running:
        redis = children(running.process.pid, "redis-server")
        workers = workers_of(running)
        assert (len(redis), len(workers)) == (1, 2)
        kill(running.process.pid)
        wait_until(lambda: all(gone(pid) for pid in redis + workers), SOON, "the end of Redis and the workers")


def test_one_worker_of_two_killed_in_the_middle_of_a_fill(tmp_path, origin):
    """Its readers' connections break; the other worker reads the object right; after a restart nothing is left over."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
    body = origin.put("/worker/object", content(3 * MIB, "worker"))
    hang = origin.hang("/worker/object", after=MIB + 1000)
    with gateway(settings, tmp_path / "home") as running, client_of_each_worker(running) as clients:
        (victim, reader), (survivor, other) = clients.items()
        reader.send("GET", "/worker/object")
        response = reader.begin()
        before = response.read(MIB)
        hang.gate.arrival.result(30)
        kill(victim)
        hang.gate.open()
        assert not finish(response, before).whole
        got = other.get("/worker/object")
        assert (got.status, got.whole, got.body == body) == (200, True, True)
        eventually(
            lambda: workers_of(running),
            lambda workers: len(set(workers) - {victim, survivor}) == 1,
            "a new worker",
        )
        with client_of_each_worker(running) as successors:
            assert [client.get("/worker/object").body == body for client in successors.values()] == [True, True]
    with gateway(settings, tmp_path / "home") as running:
        assert_sound(running, settings.cache, {"/worker/object": body})


def test_eviction_goes_on_when_the_keeper_is_killed(tmp_path, origin):
    """The keeper's work is taken up by another worker at once, and the capacity holds."""
    settings = Settings(origin.endpoint, tmp_path / "cache", capacity="2MB", block_size="64KiB", workers=2)
    bodies = objects(origin, "keeper", [50 * KIB] * 80)
    with gateway(settings, tmp_path / "home") as running:
        keeper = keeper_of(settings.cache)
        assert keeper in workers_of(running)
        kill(keeper)
        for path, body in bodies.items():
            assert get(running, path).body == body
        newest = list(bodies)[-1]
        eventually(lambda: get(running, newest).cache, lambda status: status == "HIT", "a hit of the newest object")
        await_index_equals_disk(settings.cache)
        assert used_by(settings.cache) <= 2_000_000


def keeper_of(cache: Path) -> int:
    """The worker that holds the node lock, as the kernel says (proc_locks(5))."""
    inode = str((cache / "keeper.lock").stat().st_ino)
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return next(int(lock[4]) for lock in locks if lock[1] == "FLOCK" and lock[5].rpartition(":")[2] == inode)


def test_memory_of_a_killed_gateway_whose_cache_is_gone(tmp_path, origin):
    """Rule: after a killed gateway's cache directory is deleted, the next start of any gateway frees its table."""
    settings = Settings(origin.endpoint, tmp_path / "cache")
    with doomed(settings, tmp_path / "home") as running:
        kill(running.process.pid)
    table = table_of(settings.cache)
    assert table.exists()
    shutil.rmtree(settings.cache)
    with gateway(Settings(origin.endpoint, tmp_path / "other"), tmp_path / "home"):
        wait_until(lambda: not list(table.parent.glob(f"{table.name}*")), SOON, "the end of the table")
