"""Memory for the bodies of requests."""

from __future__ import annotations

import pytest

from gateway.model.holders import OWN
from gateway.server.received import BODIES, room_for


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"0")]], ids=["no length", "length 0"])
async def test_a_request_without_a_body_waits_for_nobodys_memory(headers: list[tuple[bytes, bytes]]) -> None:
    """Rule: it is let in though others have all of the memory, several at once, and leaves nothing behind."""
    before = BODIES.used  # of other tests in this process
    rest = BODIES.limit - before
    BODIES.take(OWN, rest)
    try:
        async with room_for({"headers": headers}, 1000), room_for({"headers": headers}, 1000):
            assert BODIES.used == BODIES.limit
    finally:
        BODIES.give_back(OWN, rest)
    assert BODIES.used == before
