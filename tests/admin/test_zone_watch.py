"""The watch over problems that only show in the whole zone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.admin.state.reading import FleetReading
from gateway.base import metrics
from gateway.fleet.nodes.samples import NodeSample
from gateway.operate.status.zone_watch import ZoneWatch


class Noted:
    """Remembers what was noted last."""

    def __init__(self) -> None:
        self.names: list[str] | None = None

    async def record(self, lasting: Any) -> None:
        """Take the names."""
        self.names = list(lasting)


class Trends:
    """Remembers the figures that were noted."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    async def record(self, figures: Any) -> None:
        """Take them."""
        self.noted.append(figures)


def counted(kind: str) -> float:
    """Problems of a kind, as Prometheus sees them."""
    return float(metrics.ZONE_PROBLEMS.labels(kind)._value.get())


async def test_the_leader_notes_and_counts_problems_and_nobody_else() -> None:
    """Rule: only the leader notes problems and counts them; without Redis it leaves both as they are, and it counts nothing once
    it leads no more."""
    gone = FleetReading(at=100.0, statuses={"b": NodeSample(60.0, {})})
    state = {"reading": gone, "leads": False}

    async def look() -> Any:
        return state["reading"]

    noted = Noted()
    watch = ZoneWatch(SimpleNamespace(look=look), noted, Trends(), lambda: bool(state["leads"]))  # type: ignore[arg-type]
    await watch.run_once()
    assert (noted.names, counted("gone")) == (None, 0)
    state["leads"] = True
    await watch.run_once()
    assert (noted.names, counted("gone")) == (["gone b"], 1)
    state["reading"] = FleetReading(at=101.0, lost="Redis is not reachable")
    await watch.run_once()
    assert (noted.names, counted("gone")) == (["gone b"], 1)
    state["leads"] = False
    await watch.run_once()
    assert counted("gone") == 0
