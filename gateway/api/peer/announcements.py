"""Announces writes for a node that cannot reach Redis."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.api.s3.answer import Answer, complete
from gateway.model.datasets import ApiError
from gateway.model.keys import ObjectKey
from gateway.model.peer.announcements import ANNOUNCED, LONGEST, read_written

Announce = Callable[[Sequence[ObjectKey] | None], Awaitable[bool]]


def announcements(announce: Announce) -> Address:
    """The endpoint ``/-/peer/v1/announce``; see ``model.peer.announcements``.

    Args:
        announce: forgets objects here and announces them over Redis; returns whether Redis accepted the announcement.
    """

    async def answer(request: PeerRequest) -> None:
        try:
            keys = read_written(request.body)
        except ValueError as mistake:
            raise ApiError("InvalidRequest", str(mistake)) from None
        status = ANNOUNCED if await announce(keys) else 503
        await complete(request.scope, request.send, Answer(status, [(b"content-length", b"0")], b""))

    return Address(re.compile("announce"), ("POST",), answer, LONGEST, on_behalf_of=OnBehalfOf.NODE)
