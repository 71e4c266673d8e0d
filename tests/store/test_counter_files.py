"""Files of counters that workers share: their pages exist before they are written, and a full file system stops nobody."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

from gateway.base.counter_files import AllocatedDict
from gateway.base.metrics import REQUESTS

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that makes the file system full."""

    def refuse(*_: object) -> None:
        raise FULL

    return lambda: monkeypatch.setattr(os, "posix_fallocate", refuse)


def read(path: Path) -> dict[str, float]:
    """What another worker reads of a file."""
    return {key: value for key, value, *_ in MmapedDict.read_all_values_from_file(str(path))}


def holes(path: Path) -> int:
    """Bytes of a file that are not allocated."""
    status = path.stat()
    return max(0, status.st_size - 512 * status.st_blocks)


def test_a_file_has_no_holes_at_first_nor_later(tmp_path: Path) -> None:
    """Rule: touching a hole kills the process when the file system is full, so there is none, however long the file gets."""
    path = tmp_path / "counter_1.db"
    sizes = set()
    with closing(AllocatedDict(str(path))) as counted:
        for number in range(3000):
            counted.write_value(f"{number:0100}", float(number), 0.0)
            sizes.add(path.stat().st_size)
            assert holes(path) == 0
    assert len(sizes) > 2
    assert len(read(path)) == 3000


def test_a_worker_counts_on_when_its_file_cannot_grow(tmp_path: Path, fill: Callable[[], None], caplog) -> None:
    """Rule: values go on in memory, others read what was there before, and the log names the folder, once."""
    path = tmp_path / "counter_1.db"
    counted = AllocatedDict(str(path))
    counted.write_value("first", 1.0, 0.0)
    fill()
    for number in range(5000):
        counted.write_value(f"{number:0100}", float(number), 0.0)
    counted.write_value("first", 2.0, 0.0)
    assert counted.read_value("first")[0] == 2.0
    assert counted.read_value(f"{4999:0100}")[0] == 4999.0
    assert read(path)["first"] == 1.0
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]


def test_a_worker_starts_when_there_is_no_room_for_a_file(tmp_path: Path, fill: Callable[[], None]) -> None:
    """Rule: it counts in memory; no empty file is left, which readers of all files would fail at."""
    fill()
    counted = AllocatedDict(str(tmp_path / "counter_1.db"))
    for number in range(3000):
        counted.write_value(f"{number:0100}", float(number), 0.0)
    assert counted.read_value(f"{2999:0100}")[0] == 2999.0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """Rule: a cleaner of /dev/shm does not keep a worker from starting."""
    path = tmp_path / "gone" / "counter_1.db"
    with closing(AllocatedDict(str(path))) as counted:
        counted.write_value("first", 1.0, 0.0)
    assert read(path) == {"first": 1.0}


def test_metrics_of_several_workers_use_these_files() -> None:
    """Rule: prometheus_client makes its files by this class once the metrics are declared."""
    assert REQUESTS is not None
    assert values.MmapedDict is AllocatedDict
