"""The worth of a saved read: seconds of GPUs or, with an operator's prices, money.

Every bidder of the ledger (``allocation.py``) states its savings per second: seconds that GPUs would wait, reads of the store,
and their bytes. Without prices only the seconds count, and the ledger minimises GPU waiting. With prices, a read costs its
request and its bytes, and a second of GPU waiting costs its part of an hour. Then the ledger minimises the sum of both.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9
HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class UnitPrices:
    """Prices in one ``currency``; 0 is free; without any price, seconds count."""

    gb_read: float = 0.0
    thousand_requests: float = 0.0
    gpu_hour: float = 0.0
    currency: str = ""

    @property
    def known(self) -> bool:
        """Whether there is a price."""
        return bool(self.gb_read or self.thousand_requests or self.gpu_hour)

    def worth(self, gpu_seconds: float, reads: float = 0.0, size: float = 0.0) -> float:
        """The gain if GPUs wait ``gpu_seconds`` less, and the store gets ``reads`` fewer reads, of ``size`` bytes in total."""
        if not self.known:
            return gpu_seconds
        return gpu_seconds * self.gpu_hour / HOUR + reads * self.thousand_requests / 1000 + size * self.gb_read / GB


SECONDS = UnitPrices()
"""No prices."""
