"""Names of this node's cached objects, for another node. The sender has authorized the operator."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, TypeAdapter

from gateway.api.peer.app import Address, PeerRequest
from gateway.edge.asgi import send_json
from gateway.model.datasets import ApiError
from gateway.model.keys import ObjectKey
from gateway.operate.browse.work import LONGEST, MOST
from gateway.store.store import Store

_ASKED = TypeAdapter(tuple[str, str, str, str, Annotated[int, Field(ge=1, le=MOST + 1)]])


def peer_names(store: Store) -> Address:
    """The endpoint ``/-/peer/v1/names``: the names below the prefix in the body that this node has cached."""

    async def answer(request: PeerRequest) -> None:
        try:
            origin, bucket, prefix, last, limit = _ASKED.validate_json(request.body)
        except ValueError:
            raise ApiError("InvalidRequest", "the body must be [origin, bucket, prefix, last, limit]") from None
        if origin != request.principal.identity.origin:
            raise ApiError("InvalidRequest", "the body and the principal name different origins")
        names = await store.names(ObjectKey(origin, bucket, prefix), last, limit)
        await send_json(request.send, 200, names)

    return Address(re.compile("names"), ("POST",), answer, LONGEST, changes=False)
