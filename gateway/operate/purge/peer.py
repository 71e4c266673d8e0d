"""Purges passed on by another node. The sender has authorized the operator."""

from __future__ import annotations

import re

from pydantic_core import from_json

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.edge.asgi import send_json
from gateway.model.datasets import ApiError
from gateway.operate.purge.work import LONGEST, Forgetting, Purge


def peer_purges(here: Forgetting) -> Address:
    """The endpoint ``/-/peer/v1/forget``: apply the purge in the body on this node alone; the answer counts the removed
    objects."""

    async def answer(request: PeerRequest) -> None:
        try:
            purge = Purge.from_json(from_json(request.body))
        except (ValueError, KeyError, TypeError) as mistake:
            raise ApiError("InvalidRequest", f"the body must be a purge: {mistake}") from None
        done = await here.apply(purge)
        await send_json(
            request.send, 200, {"objects": done.held.objects, "bytes": done.held.bytes, "failure": done.failure}
        )

    return Address(re.compile("forget"), ("POST",), answer, LONGEST, on_behalf_of=OnBehalfOf.NODE)
