"""Process metrics of a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway import __version__
from gateway.base import metrics

_PAGE = os.sysconf("SC_PAGE_SIZE")


def show_memory(statm: Path = Path("/proc/self/statm")) -> None:
    """Update the metrics of version and memory; memory is left out on systems without Linux's ``statm``."""
    metrics.BUILD.labels(__version__).set(1)
    try:
        resident = int(statm.read_text().split()[1])
    except OSError:
        return
    metrics.MEMORY.set(resident * _PAGE)


@contextmanager
def late(seconds: float) -> Iterator[None]:
    """Record by how much a wait of ``seconds`` in the event loop overran."""
    began = time.perf_counter()
    yield
    metrics.LOOP_LAG.observe(max(0.0, time.perf_counter() - began - seconds))
