"""Sending answers: the ASGI messages of a body."""

from __future__ import annotations

from collections.abc import AsyncGenerator, MutableMapping, Sequence
from typing import Any

import pytest

from gateway.api.s3.answer import Answer, send_answer


async def sent(length: int, pieces: Sequence[bytes]) -> list[tuple[bytes, bool]]:
    """The messages of a streamed body of a known length, 0 for an unknown one: bytes, and whether more follow."""
    messages: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def stream() -> AsyncGenerator[bytes]:
        for piece in pieces:
            yield piece

    await send_answer({}, send, Answer(200, [], stream(), length=length))
    return [(each["body"], each.get("more_body", False)) for each in messages[1:]]


@pytest.mark.parametrize(
    ("length", "pieces", "messages"),
    [
        (3, [b"ab", b"c"], [(b"ab", True), (b"c", False)]),
        (0, [b"ab", b"c"], [(b"ab", True), (b"c", True), (b"", False)]),
        (0, [], [(b"", False)]),
        (3, [b"ab"], [(b"ab", True), (b"", False)]),
    ],
    ids=["known", "unknown", "empty", "short"],
)
async def test_a_body_ends_with_its_last_byte(
    length: int, pieces: list[bytes], messages: list[tuple[bytes, bool]]
) -> None:
    """Rule: a body of known length ends with the piece that completes it; any other body ends with a separate message."""
    assert await sent(length, pieces) == messages
