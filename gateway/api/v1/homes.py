"""``/-/v1/datasets/{name}/homes``: the ring keys of items, from which a reader computes the home node of each item.

A key is the first eight of the 32 bytes of an item's SHA-256. The whole digest is a right to read the item (see
docs/security.md); the key is not: 192 bits stay unknown, so no one can present or guess the digest. A key does reveal that two
items are equal, or that an item equals known content. It is given only for items that the caller's allow-list covers, and a
caller who may read an item can compute its digest anyway. Keys derived from a secret would reveal less, but every reader would
need that secret, unchanged in the whole fleet for as long as anything is cached.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import Query, Response

from gateway.api.v1.batch import check_rights
from gateway.api.v1.datasets import MEANINGS, Service
from gateway.api.v1.requests import WITHOUT_BODY, Asking, v1_router
from gateway.model.datasets import ApiError

MOST_KEYS = 1 << 20
_KEY = 8

router = v1_router("datasets", MEANINGS)


@router.get(
    "/datasets/{name}/homes",
    summary="List the ring's keys of items",
    response_class=Response,
    responses={
        200: {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "description": "an eight-byte key per item, unsigned, little-endian",
        }
    },
    dependencies=WITHOUT_BODY,
)
async def show_homes(
    name: str,
    caller: Asking,
    service: Service,
    start: Annotated[int, Query(ge=0, description="index of the first item")] = 0,
    count: Annotated[int, Query(ge=1, le=MOST_KEYS, description="most keys to list")] = MOST_KEYS,
) -> Response:
    """The ring keys of items: with the nodes of ``/-/v1/fleet``, a reader computes the home of each item and asks there first."""
    registration = await service.found(caller.principal, name)
    content = registration.content
    if start > content.items:
        raise ApiError(
            "IndexOutOfRange", f"The parameter start must be at most {content.items}, the number of items.", index=start
        )
    stop = min(content.items, start + count)
    await check_rights(caller.principal, registration, np.arange(start, stop, dtype=np.uint32))
    return Response(content.digests[start:stop, :_KEY].tobytes(), media_type="application/octet-stream")
