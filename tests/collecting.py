"""Collecting all tests, as each worker of pytest-xdist does: nothing is scanned for garbage, and assertions are rewritten once.

What a collection imports stays. Scanning it for garbage again and again would cost a quarter of the collection, a second in each
test that collects garbage, and in each process that a test forks a copy of all of it.

pytest rewrites the assertions of a test module when it is imported, and keeps the result beside it. Workers that import the same
modules in the same order find nothing kept, and each rewrites them all: half of a collection. So each begins with another module.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def permanent() -> Iterator[None]:
    """Disable garbage collection in the block, and exempt all objects created by then from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect; a worker that has others beside it imports the test modules before, from its share of them on."""
    with permanent():
        worker, workers = (os.environ.get(f"PYTEST_XDIST_{name}", "") for name in ("WORKER", "WORKER_COUNT"))
        if worker:
            folders = [session.config.invocation_params.dir / name for name in session.config.args]
            modules = sorted(path for folder in folders for path in folder.rglob("test_*.py"))
            begin = len(modules) * int(worker.removeprefix("gw")) // int(workers)
            import_all([*modules[begin:], *modules[:begin]])
        return (yield)


def import_all(modules: Sequence[Path]) -> None:
    """Import test modules by their files' names, as the collection will. It reports what cannot be imported."""
    for module in modules:
        folder = str(module.parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        with suppress(Exception):
            importlib.import_module(module.stem)
