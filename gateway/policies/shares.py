"""Divides a limited amount among its holders, so that none of them can take all of it.

A holder may take more while it has less than ``weight`` times the free amount. So the free amount shrinks as more holders come,
and each new one still finds some: one tenant alone gets three quarters, two get three sevenths each, ten get three thirty-firsts.
Requests without a key are one holder with a smaller weight: alone they get a quarter. Nothing is set aside for holders that do
not exist, and no tenant needs a configured quota.

The rule is that of dynamic thresholds for buffers shared by the ports of a switch (Choudhury and Hahne, "Dynamic Queue Length
Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6(2), 1998).
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.model.holders import Holder

WEIGHT = 3.0
"""The weight of a tenant, and of the gateway's own work."""
WEIGHT_WITHOUT_KEY = 1 / 3


class Shares:
    """An amount of places, connections or bytes, and who holds how much of it.

    Attributes:
        limit: the amount.
        used: the amount that all holders have together.
        waiting: the holders who wait for an amount; while there are any, ``serve`` follows what is given back.
    """

    waiting: Collection[Holder] = ()

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.used = 0.0
        self._held: dict[Holder, float] = {}

    def held(self, holder: Holder) -> float:
        """The amount that a holder has."""
        return self._held.get(holder, 0.0)

    def allows(self, holder: Holder, amount: float = 1) -> bool:
        """Whether a holder may take an amount now."""
        free = self.limit - self.used
        weight = WEIGHT_WITHOUT_KEY if holder is None else WEIGHT
        return amount <= free and self.held(holder) < weight * free

    def exceeds(self, holder: Holder) -> bool:
        """Whether a holder has more than it may take."""
        weight = WEIGHT_WITHOUT_KEY if holder is None else WEIGHT
        return self.held(holder) > max(1.0, weight * (self.limit - self.used))

    def most(self, holder: Holder) -> float:
        """The most that a holder may have while it is alone."""
        weight = WEIGHT_WITHOUT_KEY if holder is None else WEIGHT
        return self.limit * weight / (1 + weight)

    def claim(self, holder: Holder, amount: float = 1) -> bool:
        """Take an amount if it is allowed; returns whether it is. One call, because each request makes several."""
        held = self._held.get(holder, 0.0)
        free = self.limit - self.used
        if amount > free or held >= (WEIGHT_WITHOUT_KEY if holder is None else WEIGHT) * free:
            return False
        self.used += amount
        self._held[holder] = held + amount
        return True

    def take(self, holder: Holder, amount: float = 1) -> None:
        """Count an amount that a holder has taken, whether it is allowed or not."""
        self.used += amount
        self._held[holder] = self._held.get(holder, 0.0) + amount

    def give_back(self, holder: Holder, amount: float = 1) -> None:
        """Count an amount that a holder has given back."""
        self.used -= amount
        left = self._held.get(holder, 0.0) - amount
        if left > 0:
            self._held[holder] = left
        else:
            # An amount of 0 may have been taken several times, by requests without a body, and another of them may have ended
            # before.
            self._held.pop(holder, None)
        if self.waiting:
            self.serve()

    def serve(self) -> None:
        """Let those who wait take what is free. Nobody waits for plain shares."""
