"""Input workers that start quickly. The client's tests have those that are new interpreters, as in production."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext
from types import SimpleNamespace

import pytest

from larder.pipelines import processes
from rig import forked


def _context(method: str) -> ForkServerContext:
    assert method == "spawn"
    return forked._FORKING


@pytest.fixture(autouse=True)
def _quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers from the process that forks gateways: a new interpreter would import for 0.25 s."""
    quick = SimpleNamespace(**{**vars(multiprocessing), "get_context": _context})
    monkeypatch.setattr(processes, "multiprocessing", quick)
