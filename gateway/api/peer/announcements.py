"""Announces writes for a node that cannot reach Redis."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.api.s3.answer import Answer, complete
from gateway.model.datasets import ApiError
from gateway.model.keys import ObjectKey
from gateway.model.peer_announcements import ANNOUNCED, LONGEST, read_written

Announce = Callable[[Sequence[ObjectKey] | None], Awaitable[bool]]


class PeerAnnouncements:
    """Answers ``/-/peer/v1/announce``; see ``model.peer_announcements``.

    Args:
        announce: forgets objects here and announces them over Redis; returns whether Redis accepted the announcement.
    """

    def __init__(self, announce: Announce) -> None:
        self._announce = announce

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Addresses by the kind they are counted as."""
        return {
            "announce": Address(re.compile("announce"), ("POST",), self.announce, LONGEST, on_behalf_of=OnBehalfOf.NODE)
        }

    async def announce(self, request: PeerRequest) -> None:
        """``POST /-/peer/v1/announce``.

        Raises:
            ApiError: InvalidRequest.
        """
        try:
            keys = read_written(request.body)
        except ValueError as mistake:
            raise ApiError("InvalidRequest", str(mistake)) from None
        status = ANNOUNCED if await self._announce(keys) else 503
        await complete(request.scope, request.send, Answer(status, [(b"content-length", b"0")], b""))
