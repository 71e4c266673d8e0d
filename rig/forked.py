"""Gateways of tests are forked from a process that has imported them: a start takes 0.2 s of processor time instead of 2.

The process is the fork server of multiprocessing, one for each worker of pytest. The first test that needs a gateway starts it.
All its children have the same hash seed. A gateway of several workers forks them from its supervisor. The gateways of
tests/server, tests/cli and tests/docs are new interpreters.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import REGISTRY, values
from prometheus_client.metrics import MetricWrapperBase

from gateway.server import run
from gateway.store.datasets.registry import Registry
from rig.near import convert_near

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload([__name__, "rig.preloaded"])


class Forked:
    """A process of ``python -m gateway``, with the parts of ``subprocess.Popen`` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        *,
        files: int = 0,
        module: str = "gateway",
        isolated: bool = False,
    ) -> None:
        """Start the gateway.

        Args:
            arguments: of ``larder-gateway``.
            environ: its environment.
            log: the file that takes its standard error.
            files: limit of descriptors of each of its processes; 0 leaves the limit unchanged.
            module: the module to run.
            isolated: read digest files in child processes, as in production.
        """
        reader, writer = _FORKING.Pipe(duplex=False)
        command = (os.getcwd(), list(arguments), dict(environ), writer, log, files, module, isolated)
        self._process = _FORKING.Process(target=_become_gateway, args=command)
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()))
        reader.close()

    @property
    def pid(self) -> int:
        """The process id of the gateway; with several workers, of their supervisor."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, negative after a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("larder-gateway", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self.pid, number)


class _Worker(ForkProcess):
    """A worker whose metrics behave as if they had been made after PROMETHEUS_MULTIPROC_DIR was set."""

    def run(self) -> None:
        """Share the metrics, and serve."""
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
        for collector in list(REGISTRY._collector_to_names):
            if isinstance(collector, MetricWrapperBase):
                _count_in_files(collector)
        super().run()


def _count_in_files(metric: MetricWrapperBase) -> None:
    """Replace the values of a metric that was made before PROMETHEUS_MULTIPROC_DIR was set."""
    each: Any
    for each in (metric, *getattr(metric, "_metrics", {}).values()):
        if each._is_observable():
            each._metric_init()


def _become_gateway(
    folder: str,
    arguments: list[str],
    environ: dict[str, str],
    stdout: Connection,
    log: Path,
    files: int,
    module: str,
    isolated: bool,
) -> None:
    """Do what ``python -m gateway`` does, and end with the process of the tests."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    if _read_at_import(environ):
        _take_streams(stdout, log)
        os.execve(sys.executable, [sys.executable, "-m", module, *arguments], dict(environ))
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    _take_streams(stdout, log)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, closefd=False)
    threading.Thread(target=_end_with_tests, daemon=True).start()
    run._FORKING = SimpleNamespace(Process=_Worker)  # type: ignore[assignment]
    if not isolated:
        Registry._convert = convert_near  # type: ignore[method-assign,assignment]
    sys.argv[:] = ["gateway", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _read_at_import(environ: Mapping[str, str]) -> bool:
    """Whether a new Python would import otherwise: a ``sitecustomize``, or no compiled code."""
    if "LARDER_PURE_PYTHON" in environ:
        return True
    folders = environ.get("PYTHONPATH", "").split(os.pathsep)
    return any((Path(folder) / "sitecustomize.py").exists() for folder in folders)


def _take_streams(stdout: Connection, log: Path) -> None:
    with open(os.devnull) as nothing, stdout, log.open("a") as stream:
        for number, descriptor in enumerate((nothing.fileno(), stdout.fileno(), stream.fileno())):
            os.dup2(descriptor, number)


def _end_with_tests() -> None:
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os.kill(os.getpid(), signal.SIGTERM)


@atexit.register
def _end_what_is_left() -> None:
    """Kill processes left by a failed test, because multiprocessing would wait for them."""
    for child in multiprocessing.active_children():
        child.kill()
