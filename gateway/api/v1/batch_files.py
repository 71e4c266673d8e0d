"""Batch answers over the unix socket as open files, which the client reads itself (SCM_RIGHTS, unix(7)).

Files are sent in parts, each with the entries of its items, as soon as they are open. So the client reads the first items while
the gateway opens the rest: with two processors, the time is that of the slower side, not the sum of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gateway.api.v1.batch_body import ItemTally
from gateway.base import metrics
from gateway.engine.items.answers import Arriving, BatchAsk, Resident, Unopened
from gateway.engine.items.batch import Batches
from gateway.model.frames import AttachedIndex
from gateway.policies.items.batch import Positions
from gateway.server.asgi_types import RawHeaders, Scope, Send
from gateway.server.cycle import DESCRIPTORS
from gateway.server.local import Passing

WANTED = b"x-larder-descriptors"
"""Header of a request: how many open files the client can take."""
WHY_BYTES = "x-larder-bytes"
"""Header of an answer without files to a request for some: the reason."""
_DIGITS = 9
"""Digits of the largest number of descriptors that a client may state."""
_SMALLEST_PART, _LARGEST_PART = 16, 128
"""The most items whose files are sent together: few at first, so that the client starts reading soon, then more, which cost less
each."""
Answer = Resident | Unopened | Arriving


async def open_answer(batches: Batches, scope: Scope, ask: BatchAsk, wanted: bytes) -> tuple[Answer, str]:
    """The answer for a client that takes open files, and the reason why it has bytes instead; without a reason, its files are in
    flight.

    Args:
        batches: of this worker.
        scope: of the request.
        ask: the batch.
        wanted: how many files the client can take, as its header says.
    """
    passing, files = passing_of(scope), _number(wanted)
    unopened = None if passing is None else await batches.unopened(ask, files)
    if passing is not None and unopened is not None and passing.admit(len(unopened.positions)):
        return unopened, ""
    answer = await batches.open(ask)
    reason = _why_bytes(scope, passing, files, answer) if unopened is None else "in-flight"
    if reason and reason != "cold":
        metrics.DESCRIPTORS_REFUSED.labels(reason).inc()
    return answer, reason


def passing_of(scope: Scope) -> Passing | None:
    """The connection's descriptors in flight; ``None`` if no files may be passed over it."""
    passing: Passing | None = scope.get("extensions", {}).get(DESCRIPTORS)
    return passing


def wanted_files(scope: Scope) -> int:
    """How many open files the client of a request can take, as its header says."""
    return max((_number(value) for name, value in scope["headers"] if name == WANTED), default=0)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= _DIGITS else 0


def _why_bytes(scope: Scope, passing: Passing | None, files: int, answer: Resident | Arriving) -> str:
    if not isinstance(answer, Resident):
        return "cold"
    if passing is None:
        return "tcp" if scope.get("client") else "user"
    return "many" if len(answer.files) > files else "cold"


async def send_attached(
    scope: Scope, send: Send, ask: BatchAsk, answer: Unopened, headers: RawHeaders, tally: ItemTally
) -> None:
    """Send the index form, with open files instead of bytes, part by part.

    Raises:
        ClientGone: the connection was lost; the kernel closes descriptors that were not received.
    """
    index, positions = AttachedIndex(len(answer.positions)), answer.positions
    start: dict[str, Any] = {"type": "http.response.start", "status": 200}
    start["headers"] = [*headers, (b"content-length", b"%d" % index.length)]
    await send(start)
    head = index.preamble()
    first, size = 0, _SMALLEST_PART
    while first < len(positions):
        delivered = await _send_part(send, ask, answer, index, positions[first : first + size], head)
        tally.delivered("hit", *delivered)
        head = b""
        first, size = first + size, min(2 * size, _LARGEST_PART)
    scope["extensions"][DESCRIPTORS].sent()
    await send({"type": "http.response.body", "body": head + index.end()})


async def _send_part(
    send: Send, ask: BatchAsk, answer: Unopened, index: AttachedIndex, positions: Positions, head: bytes
) -> tuple[int, int]:
    """Send one part; returns the number of items and their bytes."""
    opened = await answer.open(positions)
    try:
        _, sizes, crcs, _ = zip(*opened.files, strict=True) if opened.files else ((), (), (), ())
        present = positions
        if len(sizes) < len(positions):
            present = np.array(opened.positions, positions.dtype)
        body = head + index.items(present, ask.indices[present], sizes, crcs)
        if len(sizes) < len(positions):
            gone = np.setdiff1d(positions, present)
            body += index.gone(gone, ask.indices[gone])
        await send({"type": DESCRIPTORS, "body": body, "files": [file.fd for file in opened.files], "more_body": True})
        opened.close_passed()
        metrics.DESCRIPTORS.inc(len(sizes))
        return len(sizes), sum(sizes)
    finally:
        opened.close()
