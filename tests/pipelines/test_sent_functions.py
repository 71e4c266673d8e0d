"""Functions of a notebook, as workers get them."""

from __future__ import annotations

import multiprocessing
import pickle
import textwrap
import threading
import types
from multiprocessing.queues import SimpleQueue
from typing import Any

import cloudpickle
import pytest

from larder.base.errors import PipelineError
from larder.pipelines.fingerprint import Fingerprint, fingerprints
from larder.pipelines.stages import AUTOCACHE, MAP, Stage
from larder.pipelines.worker import pickled
from larder.pipelines.workers import WorkerTask
from larder.testing import MemorySource

NOTEBOOK = """
    import collections, dataclasses, enum
    class Kind(enum.Enum): LEFT = 1; RIGHT = 2
    @dataclasses.dataclass
    class Settings: size: int = 3; kind: Kind = Kind.LEFT
    @dataclasses.dataclass(frozen=True, slots=True)
    class Crop: top: int = 1
    Pair = collections.namedtuple("Pair", "a b")
    class Base:
        def scaled(self, x): return super().__init__() or x
    class Scale(Base):
        def __init__(self, n): self.n = n
        def __call__(self, x): return self.scaled(x) * self.n
    SETTINGS, SCALE, NAMES = Settings(), Scale(2), {"a", "b", 3}
    def made(more):
        return lambda x: SCALE(x) + more + SETTINGS.size + len(NAMES) + Crop().top + Pair(1, 2).a + Kind.RIGHT.value
    f = made(5)
"""


def mark(function: Any) -> Fingerprint:
    """The fingerprint of a mark after the function."""
    return fingerprints((Stage(MAP, 1, function), Stage(AUTOCACHE, 2)))[2]


def _send_digest(queue: SimpleQueue[str], function: bytes) -> None:
    queue.put(mark(pickle.loads(function)).digest)


def test_what_cannot_be_sent_is_named() -> None:
    """Rule: the suggested remedy is a possible one: cloudpickle is installed already."""
    lock = threading.Lock()
    task = WorkerTask(MemorySource(1), MemorySource(1).describe(), (Stage(MAP, 1, lambda item: lock),), 0)
    with pytest.raises(
        PipelineError, match=r"stage 1, map\(<lambda>\) cannot be sent .*\. Let the function make what"
    ) as raised:
        pickled(task)
    assert "install" not in str(raised.value)


def test_a_worker_sees_what_a_notebook_sees() -> None:
    """Rule: functions with closures, globals and classes of all kinds have the same fingerprint when cloudpickle has sent them.

    So their results are stored.
    """
    notebook = types.ModuleType("__main__")
    exec(compile(textwrap.dedent(NOTEBOOK), "notebook.py", "exec"), vars(notebook))
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_send_digest, args=(queue, cloudpickle.dumps(notebook.f)))
    process.start()
    assert queue.get() == mark(notebook.f).digest != ""
    process.join()
