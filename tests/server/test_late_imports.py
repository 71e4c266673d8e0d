"""Modules that are imported late, by several threads of a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from gateway.base.imports import imported

NAME = "imported_by_two_threads"


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A module that begins, and ends once it may."""
    (tmp_path / f"{NAME}.py").write_text("from gates import began, may_end\nbegan.set()\nmay_end.wait()\nrouter = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    gates = SimpleNamespace(began=Event(), may_end=Event())
    monkeypatch.setitem(sys.modules, "gates", gates)
    yield gates
    sys.modules.pop(NAME, None)


def test_a_module_that_another_thread_imports_is_waited_for(gates: SimpleNamespace) -> None:
    """Rule: nobody gets a module whose names are not there yet; a request would be answered 500."""
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(imported, NAME)
        gates.began.wait()
        second = threads.submit(lambda: imported(NAME).router)
        wait([second], 0.05)
        gates.may_end.set()
        assert (first.result().router, second.result()) == (1, 1)
