"""Scores of items that are at home here, from a node to which a client sent the scores of all homes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.edge.asgi import send_json
from gateway.edge.importance import Find, taken
from gateway.engine.space.score_exchange import ScoreExchange, ScoreSender
from gateway.model.datasets import UnknownDataset
from gateway.model.importance import MOST_SCORED, longest

_PATH = re.compile(r"importance/([0-9a-f]{64})/([A-Za-z0-9._-]{1,128})")


class PeerImportance:
    """Answers ``/-/peer/v1/importance``.

    Args:
        exchange: applies parts.
        find: returns a tenant's dataset by name or id.
    """

    def __init__(self, exchange: ScoreExchange, find: Find) -> None:
        self._exchange = exchange
        self._find = find

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Addresses by the kind they are counted as."""
        return {
            "importance": Address(
                _PATH, ("PUT",), self.importance, longest(MOST_SCORED), on_behalf_of=OnBehalfOf.TENANT
            )
        }

    async def importance(self, request: PeerRequest) -> None:
        """``PUT /-/peer/v1/importance/{dataset}/{job}``: a part; answered like ``PUT /-/v1/jobs/{job}/importance``.

        Raises:
            ApiError: the request is refused.
        """
        found = _PATH.fullmatch(request.scope["raw_path"].decode("ascii").partition("/peer/v1/")[2])
        assert found is not None
        dataset, job = found.groups()
        registration = await self._find(request.principal.tenant, dataset)
        if registration is None:
            raise UnknownDataset(dataset)
        sender = ScoreSender(request.principal.tenant, job)
        receipt = await taken(self._exchange, sender, registration.content, request.body, forwarded=True)
        await send_json(request.send, 200, {"sequence": receipt.sequence, "items": receipt.scored})
