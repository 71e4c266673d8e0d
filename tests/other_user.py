"""Runs code as another user, for rights that the gateway's user and root have implicitly. Changing users needs root."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

NOBODY = 65534
WITHIN = 120.0
"""Seconds that the work of a child may take."""


class OtherUser:
    """A forked child that runs a function as nobody; as a context manager, it ends with its block.

    Args:
        work: called in the child with the child's end of a conversation; its result must be picklable.
    """

    def __init__(self, work: Callable[[Steps], Any]) -> None:
        result, ours = os.pipe(), os.pipe()
        theirs = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _run(work, result[1], Steps(theirs[0], ours[1]))
        for end in (result[1], theirs[0], ours[1]):
            os.close(end)
        self._result = result[0]
        self._ended = False
        self.steps = Steps(ours[0], theirs[1])

    def __enter__(self) -> OtherUser:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def result(self) -> Any:
        """The function's result; its exception fails the test."""
        data = b""
        while not data.endswith(_END):
            assert wait([self._result], WITHIN), "the child is silent"
            piece = os.read(self._result, 1 << 20)
            assert piece, "the child ended without a result"
            data += piece
        good, result = pickle.loads(data[: -len(_END)])
        assert good, result
        return result

    def kill(self) -> None:
        """Kill the child at any point, at most once."""
        if self._ended:
            return
        self._ended = True
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._result)
        self.steps.close()


_END = b"-- the end of a result --"


def _run(work: Callable[[Steps], Any], out: int, steps: Steps) -> None:
    """The child's whole life."""
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        result = (True, work(steps))
    except BaseException:
        result = (False, traceback.format_exc())
    with os.fdopen(out, "wb") as file:
        file.write(pickle.dumps(result) + _END)
    signal.pause()


class Steps:
    """One end of a conversation: ``reached`` says that this side is at a point, ``wait`` waits until the other is."""

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write

    def reached(self) -> None:
        """The other side may go on."""
        os.write(self._write, b".")

    def wait(self) -> None:
        """Until the other side says so."""
        assert wait([self._read], WITHIN), "the other side is silent"
        assert os.read(self._read, 1), "the other side is gone"

    def close(self) -> None:
        """End it."""
        os.close(self._read)
        os.close(self._write)


def as_another_user(work: Callable[[], Any]) -> Any:
    """Run a function as the user nobody and return its result."""
    with OtherUser(lambda _: work()) as child:
        return child.result()


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="larder-shared-") as name:
        os.chmod(name, 0o755)
        yield Path(name)
