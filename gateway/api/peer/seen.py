"""Receives sightings by other nodes of objects whose home is this node: see ``engine.objects.sightings``."""

from __future__ import annotations

import re

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.api.s3.answer import Answer, complete
from gateway.engine.objects.sightings import LONGEST, Sightings, decoded
from gateway.model.datasets import ApiError


def peer_sightings(sightings: Sightings) -> Address:
    """The endpoint ``/-/peer/v1/seen``."""

    async def answer(request: PeerRequest) -> None:
        try:
            origin, bucket, seen = decoded(request.body)
        except ValueError as mistake:
            raise ApiError("InvalidRequest", str(mistake)) from None
        await sightings.note_here(origin, bucket, seen)
        await complete(request.scope, request.send, Answer(204, [], b""))

    return Address(re.compile("seen"), ("POST",), answer, LONGEST, on_behalf_of=OnBehalfOf.NODE)
