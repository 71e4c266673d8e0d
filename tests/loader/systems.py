"""The system of lab/benchmarks/closed_forms.py, with a gateway that is forked as those of other tests are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from lab.benchmarks import closed_forms
from lab.benchmarks.servers import ACCESS_KEY, SECRET_KEY, Running
from rig.gateways import Settings, gateway


def system(directory: Path, fraction: float, **sizes: Any) -> AbstractContextManager[closed_forms.System]:
    """A gateway whose cache holds this fraction of the items at its low watermark; ``sizes`` as there."""
    return closed_forms.system(directory, fraction, serve=_forked, **sizes)


@contextmanager
def _forked(directory: Path, origin_port: int, *, capacity: str) -> Iterator[Running]:
    settings = Settings(
        f"http://127.0.0.1:{origin_port}",
        directory / "cache",
        capacity=capacity,
        origin_key=("origin", "origin-secret"),
        credentials=({"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY},),
        rules=({"match": "**", "freshness": "1h", "grant": "1h"},),
        # The closed forms are those of LRU; a recognised stream of random reads is evicted in another order.
        extra="[streams]\nenabled = false\n",
    )
    with gateway(settings, directory / "gateway") as running:
        yield Running("larder", running.port, running.process.pid)
