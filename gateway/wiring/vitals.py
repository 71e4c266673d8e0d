"""Process metrics of a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway import __version__, metrics

_PAGE = os.sysconf("SC_PAGE_SIZE")


def show_memory(statm: Path = Path("/proc/self/statm")) -> None:
    """Bring the metrics of version and memory up to date; without Linux's ``statm``, memory is not told."""
    metrics.BUILD.labels(__version__).set(1)
    try:
        resident = int(statm.read_text().split()[1])
    except OSError:
        return
    metrics.MEMORY.set(resident * _PAGE)


@contextmanager
def late(seconds: float) -> Iterator[None]:
    """Note by how much what should take ``seconds``, a wait of the event loop, takes longer."""
    began = time.perf_counter()
    yield
    metrics.LOOP_LAG.observe(max(0.0, time.perf_counter() - began - seconds))
