"""Property tests whose outcome does not depend on how fast the machine is, and input workers that start quickly."""

import multiprocessing
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from larder.pipelines import processes

settings.register_profile("planner", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("planner")

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["numpy.random", "larder.pipelines.processes", "pipeline_steps"])


def _context(method):
    assert method == "spawn"
    return _FORKING


@pytest.fixture
def spawned():
    """Start workers as new interpreters, as in production."""


@pytest.fixture(autouse=True)
def _quick_workers(request, monkeypatch):
    """Fork workers from a process that has imported the client, and little else: a new interpreter takes 0.25 s to do that."""
    if "spawned" not in request.fixturenames:
        quick = SimpleNamespace(**{**vars(multiprocessing), "get_context": _context})
        monkeypatch.setattr(processes, "multiprocessing", quick)
