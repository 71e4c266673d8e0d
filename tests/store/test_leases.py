"""One fill per block among the workers of a node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.model.keys import ObjectKey
from gateway.store.shared.leases import FillLeases
from rig.processes import wait_until

KEY = ObjectKey("default", "b", "k")
SIBLING = """
import sys
from pathlib import Path
from gateway.model.keys import ObjectKey
from gateway.store.shared.leases import FillLeases
leases = FillLeases(Path(sys.argv[1]))
key = ObjectKey("default", "b", "k")
for line in sys.stdin:
    word, number = line.split()
    print(leases.acquire(key, int(number), 7) if word == "acquire" else leases.release(key, int(number), 7), flush=True)
"""


class Sibling:
    """Another worker process with the same shared file."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, question: str) -> str:
        """Send a line and read the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def sibling(path: Path) -> Iterator[Sibling]:
    """A sibling for the time of a test."""
    with subprocess.Popen(
        [sys.executable, "-c", SIBLING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Sibling(process)
        process.kill()


def test_another_worker_waits_for_the_block_and_only_for_it(tmp_path: Path) -> None:
    """A lease is about one block of one object."""
    path = tmp_path / "fills"
    leases = FillLeases(path)
    with sibling(path) as other:
        assert other.ask("acquire 0") == "True"
        assert not leases.acquire(KEY, 0, 7)
        assert leases.acquire(KEY, 1, 7)
        assert other.ask("acquire 1") == "False"
        other.ask("release 0")
        assert leases.acquire(KEY, 0, 7)
    leases.close()


def test_a_dead_worker_holds_nothing(tmp_path: Path) -> None:
    """kill -9 of the filling worker gives its leases back at once, without a time limit."""
    path = tmp_path / "fills"
    leases = FillLeases(path)
    with sibling(path) as other:
        other.ask("acquire 0")
        other.process.kill()
        other.process.wait()
        wait_until(lambda: leases.acquire(KEY, 0, 7), 10, "the lease of a dead worker")
    leases.close()


def test_within_a_worker_leases_are_counted(tmp_path: Path) -> None:
    """Two tasks of one worker may hold the same lease; it is given up with the second release."""
    path = tmp_path / "fills"
    leases = FillLeases(path)
    with sibling(path) as other:
        assert leases.acquire(KEY, 0, 7)
        assert leases.acquire(KEY, 0, 7)
        leases.release(KEY, 0, 7)
        assert other.ask("acquire 0") == "False"
        leases.release(KEY, 0, 7)
        assert other.ask("acquire 0") == "True"
    leases.close()


def test_a_single_worker_needs_no_file() -> None:
    """Without siblings every lease is granted and nothing is written."""
    leases = FillLeases()
    assert leases.acquire(KEY, 0, 7)
    leases.release(KEY, 0, 7)
    assert not leases.shared


def test_a_directory_that_cannot_be_written_grants_every_lease(tmp_path: Path) -> None:
    """An ill disk stores nothing, so there is nothing to coordinate."""
    assert FillLeases(tmp_path / "missing" / "fills").acquire(KEY, 0, 7)
