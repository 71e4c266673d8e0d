"""``/-/v1/datasets/{id}/results/{fingerprint}``: results of pipelines, many in one request (docs/batch-protocol.md).

``POST .../batch`` reads them, and may claim what is missing; ``PUT`` stores them. A caller who may read a dataset's items may
read and store the results of its tenant. A read-only key neither stores nor claims results. All refusals happen before the first
byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from gateway.api.v1.batch import check_rights, parse_indices
from gateway.api.v1.batch_body import headers_of
from gateway.edge.asgi import send_json
from gateway.engine.items.results import FilePart, FoundResults, ResultClaim, ResultRequest, Results
from gateway.fleet.jobs.result_claims import LONGEST
from gateway.model.datasets import ApiError
from gateway.model.errors import BrokenBody, LarderError
from gateway.model.frames import MEDIA_TYPE, FrameEntry, ItemFlag, index_head
from gateway.model.keys import Principal
from gateway.model.results import (
    LONGEST_BODY,
    MOST_RESULTS,
    MOST_VERSIONS,
    MalformedResults,
    ReceivedResult,
    is_fingerprint,
    is_owner,
    read_results,
)
from gateway.server.asgi_types import Scope, Send
from gateway.server.cycle import Piece
from gateway.server.received import room_for
from gateway.server.send import send_pieces
from gateway.store.datasets.opened import Registration

LONGEST_WAIT = 30.0
"""Seconds of the longest wait for results that others compute."""
_GET = ("claim", "name", "owner", "versions", "wait")
_PUT = ("name", "owner", "replace", "versions")
_MOST_NUMBERS = 1 << 32
"""Results of a mark that have numbers."""


@dataclass(frozen=True, slots=True)
class ResultCall:
    """A request whose caller and dataset are known."""

    scope: Scope
    send: Send
    principal: Principal
    registration: Registration
    fingerprint: str
    body: bytes

    def request(self, query: dict[str, str]) -> ResultRequest:
        """The subject of the request.

        Raises:
            ApiError: the fingerprint is malformed, or ``versions`` is out of range.
        """
        if not is_fingerprint(self.fingerprint):
            raise _invalid(
                "the fingerprint in the address must be 64 lower-case hex digits, the SHA-256 of the functions"
            )
        return ResultRequest(self.registration, self.fingerprint, versions=versions_of(query, self.registration))


def named(query: bytes) -> str:
    """The name of the requested registration, empty if the request has none; it is needed because several registrations may have
    one id."""
    return dict(parse_qsl(query.decode("latin-1"))).get("name", "")


class ResultsEndpoint:
    """Answers requests about results.

    Args:
        results: as this worker reaches them.
    """

    def __init__(self, results: Results) -> None:
        self._results = results

    @staticmethod
    def longest(method: str) -> int:
        """Bytes of the longest body."""
        return LONGEST_BODY if method == "PUT" else 4 * MOST_RESULTS

    def room(self, scope: Scope) -> AbstractAsyncContextManager[None]:
        """Memory for the body of a PUT, while it is received and stored.

        Raises:
            ApiError: SlowDown.
        """
        return room_for(scope, LONGEST_BODY) if scope["method"] == "PUT" else nullcontext()

    async def get(self, call: ResultCall) -> None:
        """Answer with results.

        Raises:
            ApiError: the request is refused.
            BrokenBody: the answer that has begun cannot be completed.
        """
        query = _query(call.scope["query_string"], _GET)
        request = call.request(query)
        numbers = numbers_of(call.body, request)
        await check_rights(call.principal, call.registration, request.items_of(numbers))
        claim = None if call.principal.read_only else _claim(query)
        results = await self._results.get(request, numbers, claim)
        await send_results(call.scope, call.send, results, numbers.tolist())

    async def put(self, call: ResultCall) -> None:
        """Store results; the answer has the outcome of each, in the order of the entries.

        Raises:
            ApiError: the request is refused.
        """
        query = _query(call.scope["query_string"], _PUT)
        request = call.request(query)
        owner = _owner(query) if "owner" in query else ""
        if query.get("replace", "1") != "1":
            raise _invalid(f"replace must be 1 or left out, not {query['replace'][:40]!r}")
        if call.principal.read_only:
            raise ApiError("AccessDenied", "This access key is read-only: it may read results, and store none.")
        entries = entries_of(call.body, request)
        numbers = np.array([entry.index for entry in entries], np.uint32)
        await check_rights(call.principal, call.registration, request.items_of(numbers))
        request = replace(request, replace="replace" in query)
        await send_json(call.send, 200, {"results": await self._results.put(request, entries, owner)})


def versions_of(query: Mapping[str, str], registration: Registration) -> int:
    """Results of an item, by the query.

    Raises:
        ApiError: it is no number in range, or some results would have no number of four bytes.
    """
    text = query.get("versions", "1")
    versions = int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0
    if not 1 <= versions <= MOST_VERSIONS:
        raise _invalid(f"versions must be a number from 1 to {MOST_VERSIONS}, not {text[:40]!r}")
    if versions * registration.content.items > _MOST_NUMBERS:
        raise _invalid(
            f"{versions} versions of {registration.content.items} items are too many: at most 2**32 have numbers"
        )
    return versions


def numbers_of(body: bytes, request: ResultRequest) -> NDArray[np.uint32]:
    """The requested results.

    Raises:
        ApiError: InvalidRequest, TooLarge or IndexOutOfRange, naming the first wrong one.
    """
    return parse_indices(body, request.numbers, distinct=True, what="item" if request.versions == 1 else "result")


def entries_of(body: bytes, request: ResultRequest) -> list[ReceivedResult]:
    """The entries of a PUT.

    Raises:
        ApiError: InvalidRequest or IndexOutOfRange, naming the entry.
    """
    try:
        entries = read_results(body)
    except MalformedResults as mistake:
        raise _invalid(f"the body: {mistake}") from None
    seen = set[int]()
    for entry in entries:
        if entry.index >= request.numbers:
            what = "item" if request.versions == 1 else "result"
            detail = (
                f"there is no {what} {entry.index} (at position {entry.position}): the dataset has {request.numbers}"
            )
            raise ApiError("IndexOutOfRange", detail, index=entry.index, position=entry.position)
        if entry.index in seen:
            raise _invalid(f"the result {entry.index} comes twice, the second time at position {entry.position}")
        seen.add(entry.index)
    return entries


async def send_results(scope: Scope, send: Send, results: FoundResults, indices: list[int]) -> None:
    """Send the index form: an entry for each index, in order, and the stored elements.

    Closes ``results``.

    Raises:
        BrokenBody: a file was truncated after it was opened; the connection must be broken.
    """
    try:
        entries, pieces = [], list[Piece]()
        for position, index in enumerate(indices):
            element = results.elements.get(index)
            if element is None:
                entries.append(FrameEntry(position, index, 0, 0, ItemFlag.NONE, results.statuses[index]))
            elif isinstance(element, FilePart):
                entries.append(FrameEntry(position, index, element.size, element.crc32))
                pieces.append((element.file.fd, element.start, element.size, element.file.inode))
            else:
                entries.append(FrameEntry(position, index, len(element.data), element.crc32))
                pieces.append(bytes(element.data))
        head, end, size = index_head(entries)
        length = len(head) + size + len(end)
        headers = headers_of([("content-type", MEDIA_TYPE), ("content-length", str(length))])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send_pieces(scope, send, [head, *pieces, end])
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure
    finally:
        results.close()


def _query(raw: bytes, known: tuple[str, ...]) -> dict[str, str]:
    given = dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))
    for name in given:
        if name not in known:
            raise _invalid(f"unknown parameter {name[:64]!r}; known: {', '.join(known)}")
    return given


def _claim(query: dict[str, str]) -> ResultClaim | None:
    if "claim" not in query:
        if query.keys() - {"name", "versions"}:
            raise _invalid(
                "owner and wait belong to claim, the seconds that the caller may take to compute what is missing"
            )
        return None
    wait = _seconds(query, "wait", LONGEST_WAIT) if "wait" in query else 0.0
    return ResultClaim(_owner(query), max(0.001, _seconds(query, "claim", LONGEST)), wait)


def _owner(query: dict[str, str]) -> str:
    owner = query.get("owner", "")
    if not is_owner(owner):
        raise _invalid("owner must have 1 to 64 of A-Z a-z 0-9 . _ -; it names a training run")
    return owner


def _seconds(query: dict[str, str], name: str, most: float) -> float:
    try:
        seconds = float(query[name])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= most:
        raise _invalid(f"{name} must be a number of seconds from 0 to {most:g}, not {query[name][:40]!r}")
    return seconds


def _invalid(detail: str) -> ApiError:
    return ApiError("InvalidRequest", detail)
