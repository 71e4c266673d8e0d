"""Scores of items whose home is this node, from a node that received a client's scores for all homes."""

from __future__ import annotations

import re

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.edge.asgi import send_json
from gateway.edge.importance import taken
from gateway.engine.space.score_exchange import ScoreExchange, ScoreSender
from gateway.model.datasets import UnknownDataset
from gateway.model.importance import MOST_SCORED, longest
from gateway.store.datasets.opened import FindRegistration

_PATH = re.compile(r"importance/([0-9a-f]{64})/([A-Za-z0-9._-]{1,128})")


def peer_importance(exchange: ScoreExchange, find: FindRegistration) -> Address:
    """The endpoint ``PUT /-/peer/v1/importance/{dataset}/{job}``: a part; answered like ``PUT /-/v1/jobs/{job}/importance``.

    Args:
        exchange: applies parts.
        find: returns a tenant's dataset by name or id.
    """

    async def answer(request: PeerRequest) -> None:
        dataset, job = request.names
        registration = await find(request.principal.tenant, dataset)
        if registration is None:
            raise UnknownDataset(dataset)
        sender = ScoreSender(request.principal.tenant, job)
        receipt = await taken(exchange, sender, registration.content, request.body, forwarded=True)
        await send_json(request.send, 200, {"sequence": receipt.sequence, "items": receipt.scored})

    return Address(_PATH, ("PUT",), answer, longest(MOST_SCORED), on_behalf_of=OnBehalfOf.TENANT)
