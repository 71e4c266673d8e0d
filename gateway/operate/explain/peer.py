"""This node's explanations, for another node. The sender has authorized the operator."""

from __future__ import annotations

import re

from pydantic import TypeAdapter

from gateway.api.peer.app import Address, PeerRequest
from gateway.api.peer.loads import checked_key
from gateway.edge.asgi import send_json
from gateway.model.datasets import ApiError
from gateway.model.keys import ObjectKey
from gateway.operate.explain.work import LONGEST, Explainer, headers, to_json

_KEY = TypeAdapter(tuple[str, str, str])


def peer_explanations(explainer: Explainer) -> Address:
    """The endpoint ``/-/peer/v1/explain``: what this node has cached of the object in the body, for the principal."""

    async def answer(request: PeerRequest) -> None:
        knowledge = await explainer.here(_key(request), request.principal.identity)
        await send_json(request.send, 200, to_json(knowledge), headers(knowledge))

    return Address(re.compile("explain"), ("POST",), answer, LONGEST, changes=False)


def _key(request: PeerRequest) -> ObjectKey:
    try:
        origin, bucket, key = _KEY.validate_json(request.body)
    except ValueError:
        raise ApiError("InvalidRequest", "the body must be [origin, bucket, key]") from None
    return checked_key(request, origin, bucket, key)
