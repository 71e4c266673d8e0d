"""How many items of datasets the other nodes of the zone hold, as they last reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.reports import NodeReport, NodeReports


class HeldElsewhere:
    """The items on nodes other than ``me``."""

    def __init__(self, reports: NodeReports[dict[str, NodeReport]], me: str) -> None:
        self._reports = reports
        self._me = me

    async def items(self) -> Mapping[str, int]:
        """Items by dataset, counting every copy of an item; none while Redis is down."""
        held: Counter[str] = Counter()
        try:
            reports = await self._reports.all()
        except DOWN:
            return held
        for node, report in reports.items():
            if node != self._me:
                held.update({dataset: on_node.resident for dataset, on_node in report.items()})
        return held
