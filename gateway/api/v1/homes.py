"""``/-/v1/datasets/{name}/homes``: the ring's keys of items, with which a reader finds the node that each item is home on.

A key is the first eight of the 32 bytes of an item's SHA-256. The digest as a whole is a right to read the item (see
docs/security.md), and these eight bytes are none: 192 bits stay unknown, so nobody can present the digest, or guess it. What
they do tell, that two items are equal or that an item is a content which one has already, is told only of items that the
caller's allow-list covers, and who may read an item can compute its digest anyway. A key that is made with a secret would tell
less, and would have to be known to every reader and stay the same in the whole fleet for as long as anything is cached:
a second secret for nothing.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, FastAPI, Query, Response

from gateway.api.v1.batch import check_rights
from gateway.api.v1.datasets import PROBLEMS, Asking, Service, checks
from gateway.edge.problems import include
from gateway.model.datasets import ApiError

MOST_KEYS = 1 << 20
_KEY = 8

router = APIRouter(prefix="/v1", tags=["datasets"], responses=PROBLEMS)


@router.get(
    "/datasets/{name}/homes",
    summary="List the ring's keys of items",
    response_class=Response,
    responses={
        200: {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "description": "a key of eight bytes for each item, unsigned, little-endian",
        }
    },
    dependencies=checks("start", "count"),
)
async def homes(
    name: str,
    caller: Asking,
    service: Service,
    start: Annotated[int, Query(ge=0, description="index of the first item")] = 0,
    count: Annotated[int, Query(ge=1, le=MOST_KEYS, description="most keys to list")] = MOST_KEYS,
) -> Response:
    """What decides where items are home: with the nodes of ``/-/v1/fleet`` a reader computes each item's, and asks it there."""
    registration = await service.found(caller.principal, name)
    content = registration.content
    if start > content.items:
        raise ApiError("IndexOutOfRange", f"start: there are {content.items} items, the first is 0.", index=start)
    stop = min(content.items, start + count)
    await check_rights(caller.principal, registration, np.arange(start, stop, dtype=np.uint32))
    return Response(content.digests[start:stop, :_KEY].tobytes(), media_type="application/octet-stream")


def add_homes(app: FastAPI) -> None:
    """Put the endpoint into an application that has the datasets' already."""
    include(app, router)
