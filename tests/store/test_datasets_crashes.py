"""Datasets after a crash: of the process, at any moment, and of the machine, which may leave any file half written."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.store.datasets.registry import DigestSource, Registry
from rig.digests import Row, files_below, id_of, rows_of, write
from rig.forked import Forked
from rig.near import NearRegistry
from rig.processes import descendants

BOOT = 11
A = "tenant a"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The datasets directory of a cache; it does not exist yet."""
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "datasets"


DAMAGE = {
    "index cut": lambda content, folder: os.truncate(content / "index", 100),
    "index empty": lambda content, folder: os.truncate(content / "index", 0),
    "index longer": lambda content, folder: os.truncate(content / "index", 10_000),
    "index of zeros": lambda content, folder: (content / "index").write_bytes(
        bytes((content / "index").stat().st_size)
    ),
    "no index": lambda content, folder: (content / "index").unlink(),
    "states cut": lambda content, folder: os.truncate(content / "states", 64),
    "states of zeros": lambda content, folder: (content / "states").write_bytes(bytes(64 + 8 + 40)),
    "no states": lambda content, folder: (content / "states").unlink(),
    "no content": lambda content, folder: shutil.rmtree(content),
    "locations cut": lambda content, folder: [os.truncate(path, 200) for path in folder.glob("locations-*")],
    "locations empty": lambda content, folder: [os.truncate(path, 0) for path in folder.glob("locations-*")],
    "no locations": lambda content, folder: [path.unlink() for path in folder.glob("locations-*")],
    "registration cut": lambda content, folder: os.truncate(folder / "registration.json", 20),
    "registration empty": lambda content, folder: os.truncate(folder / "registration.json", 0),
    "registration of another version": lambda content, folder: (folder / "registration.json").write_text(
        '{"version": 9}'
    ),
    "registration is a list": lambda content, folder: (folder / "registration.json").write_text("[]"),
}


@pytest.mark.parametrize("name", DAMAGE)
async def test_damaged_files_are_not_believed(directory: Path, tmp_path: Path, name: str) -> None:
    """Rule: a registration that a crash left half written counts as none; registering again repairs it."""
    rows = rows_of(5)
    path = write(tmp_path / "f", rows)
    registry = NearRegistry(directory, BOOT)
    await registry.register(A, "d", path, "auto", DigestSource("print"))
    registry.close()
    gc.collect()
    (content,) = (directory / "contents").iterdir()
    (folder,) = (directory / "tenants").glob("*/*")
    DAMAGE[name](content, folder)
    after = NearRegistry(directory, BOOT)
    assert after.find(A, "d") is None
    assert after.find(A, id_of(rows)) is None
    assert [each async for each in after.of_tenant(A)] == []
    registration, _ = await after.register(A, "d", path, "auto", DigestSource("print"))
    assert registration.content.id == id_of(rows)
    assert registration.locations.of(4).key == rows[4].key
    assert len(files_below(directory)) == 4


@pytest.fixture(scope="module")
def known() -> dict[str, list[Row]]:
    """The items of three datasets, by the datasets' ids."""
    datasets = [rows_of(20_000, seed=number) for number in range(3)]
    return {id_of(rows): rows for rows in datasets}


@pytest.fixture(scope="module")
def files(known: dict[str, list[Row]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with their digest files."""
    folder = tmp_path_factory.mktemp("files")
    for number, rows in enumerate(known.values()):
        write(folder / str(number), rows)
    return folder


def is_running(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("seed", range(6))
async def test_killed_while_registering(
    directory: Path, files: Path, known: dict[str, list[Row]], forked: Callable[..., Forked], seed: int
) -> None:
    """Rule: after kill -9 at any moment each name is whole or unknown, no other file is left, and no reader process lives on."""
    process = forked("tests.store.registering", directory, files, BOOT)
    random_moment = random.Random(seed)
    for _ in range(random_moment.randrange(4)):
        process.stdout.readline()
    # Not a wait for something to happen: the moment is to be any.
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(random_moment.random() * 0.9)
    readers = list(descendants(process.pid))
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(map(is_running, readers)):
        os.sched_yield()
    registry = Registry(directory, BOOT + 1)
    registry.sweep()
    names = {registration.name async for registration in registry.of_tenant(A)}
    for name in names:
        registration = registry.find(A, name)
        assert registration is not None
        rows = known[registration.content.id]
        assert [location.key for location in registration.locations.between(0, 20_000)] == [row.key for row in rows]
        assert registration.content.digest(19_999) == rows[19_999].digest
    contents = {registration.content.tag async for registration in registry.of_tenant(A)}
    assert {path.name for path in (directory / "contents").iterdir()} == contents
    assert len(files_below(directory)) == 2 * len(contents) + 2 * len(names)
    assert list((directory / "tmp").iterdir()) == []
