"""Announces writes without Redis: another node that reaches Redis announces them for this one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.fleet.nodes.membership import Membership
from gateway.fleet.nodes.peers import Peers, PeerUnavailable
from gateway.model.keys import ObjectKey
from gateway.model.peer.announcements import ANNOUNCE, ANNOUNCED, written

_AT_EACH = 3.0
_IN_ALL = 6.0
"""Seconds for one node to announce and collect the answers, network time included; and for all nodes that are tried."""


class Delegation:
    """Asks another node to announce writes.

    One is enough: it notifies every worker of the fleet that reaches Redis, and workers that do not reach it distrust their
    caches.
    """

    def __init__(self, membership: Membership, peers: Peers) -> None:
        self._membership = membership
        self._peers = peers

    async def __call__(self, keys: Sequence[ObjectKey] | None) -> bool:
        """Have these objects announced (``None``: all); returns whether a node did."""
        body, membership = written(keys), self._membership
        try:
            async with asyncio.timeout(_IN_ALL):
                for name in membership.ring.ids:
                    node = membership.nodes.get(name)
                    if node is not None and name != membership.me and await self._ask(node.id, body):
                        return True
        except TimeoutError:
            pass
        return False

    async def _ask(self, name: str, body: bytes) -> bool:
        try:
            async with asyncio.timeout(_AT_EACH):
                answer = await self._peers.request(self._membership.nodes[name], "POST", ANNOUNCE, body=body)
        except (PeerUnavailable, TimeoutError):
            return False
        answer.release()
        return answer.status == ANNOUNCED
