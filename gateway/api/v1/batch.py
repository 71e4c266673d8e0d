"""``POST /-/v1/datasets/{id}/batch`` and ``.../lookup``: many items of a dataset in one answer.

Plain ASGI, because this is a data path. All refusals (the query, the indices, the reader's right to every item) happen before the
first byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from gateway.api.v1 import batch_tar
from gateway.api.v1.accounting import AnswerTally, BatchAccounting
from gateway.api.v1.batch_body import Framing, SendOptions, headers_of, send_frames, send_resident
from gateway.api.v1.batch_files import WANTED, WHY_BYTES, Answer, open_answer, send_attached
from gateway.api.v1.blobs import digests_in
from gateway.base import metrics
from gateway.edge.asgi import send_json
from gateway.engine.base.planned import InForce, Planned
from gateway.engine.items.answers import Arriving, BatchAsk, Resident, Unopened
from gateway.engine.items.batch import Batches
from gateway.model.datasets import ApiError
from gateway.model.frames import MEDIA_TYPE
from gateway.model.keys import Principal
from gateway.model.reader import ORDER, ReadingJob, read_order
from gateway.policies.items.batch import BatchMode
from gateway.server.asgi_types import RawHeaders, Scope, Send
from gateway.store.datasets.content import Content
from gateway.store.datasets.opened import Registration

MOST_INDICES = 1_048_576
MOST_OFFERS = 65_536
_PARAMETERS = ("mode", "take", "ordered", "epoch", "job", "offers")
_FORMS = {Resident: "index", Unopened: "descriptors", Arriving: "frames"}
_ORDER = ORDER.encode()
_LONGEST_JOB = 128
_TURN = 1000


@dataclass(frozen=True, slots=True)
class BatchQuery:
    """The query of a batch request, checked."""

    mode: BatchMode
    take: int | None
    ordered: bool
    job: str = ""
    epoch: int | None = None
    offers: int | None = None
    order: str = ""

    @property
    def sweeps(self) -> bool:
        """Whether it is part of an epoch: it leaves the choice to the gateway, or gives the epoch of a job or announcement."""
        named = bool(self.job) or self.mode is BatchMode.PREFETCH
        return self.mode is BatchMode.SUBSTITUTE or (named and self.epoch is not None)

    def reader(self, tenant: str) -> ReadingJob | None:
        """The job that the request is for, if it names one and its epoch."""
        return ReadingJob(tenant, self.job, self.epoch, self.order) if self.job and self.epoch is not None else None


def parse_query(raw: bytes) -> BatchQuery:
    """Parse the query string of a batch.

    Raises:
        ApiError: InvalidRequest, naming the parameter and its allowed values.
    """
    given = _given(raw, _PARAMETERS)
    try:
        mode = BatchMode(given.get("mode", "exact"))
    except ValueError:
        raise _invalid(f"mode must be substitute, exact or prefetch, not {given['mode']!r}") from None
    job, epoch = _job(given)
    take, offers = _number(given, "take", 1), _number(given, "offers", 0)
    if (take is None) == (mode is BatchMode.SUBSTITUTE):
        raise _invalid("take, the number of candidates to deliver, belongs to mode=substitute only")
    if take is None and offers is not None:
        raise _invalid("offers, the number of candidates that were offered, belongs to mode=substitute only")
    ordered = given.get("ordered", "0")
    if ordered not in ("0", "1") or (ordered == "1" and mode is not BatchMode.EXACT):
        raise _invalid("ordered must be 0, or 1 with mode=exact")
    return BatchQuery(mode, take, ordered == "1", job, epoch, offers)


def parse_offers(raw: bytes) -> tuple[BatchQuery, int]:
    """Parse the query string of a request for offers: the job and its epoch, and the number of items.

    Raises:
        ApiError: InvalidRequest, naming the parameter and its allowed values.
    """
    given = _given(raw, ("epoch", "job", "most"))
    job, epoch = _job(given)
    if not job or epoch is None:
        raise _invalid("job and epoch are required: items are offered to one job in one epoch")
    most = _number(given, "most", 1) or MOST_OFFERS
    if most > MOST_OFFERS:
        raise _invalid(f"most must be at most {MOST_OFFERS}, not {most}")
    return BatchQuery(BatchMode.EXACT, None, False, job, epoch), most


def _given(raw: bytes, known: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            raise _invalid(f"unknown parameter {name!r}; known: {', '.join(known)}")
        given[name] = value
    return given


def _job(given: dict[str, str]) -> tuple[str, int | None]:
    epoch, job = _number(given, "epoch", 0), given.get("job", "")
    if len(job) > _LONGEST_JOB:
        raise _invalid(f"job must have at most {_LONGEST_JOB} characters")
    return job, epoch


def _number(given: dict[str, str], name: str, least: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise _invalid(f"{name} must be an integer of at least {least}, not {text[:40]!r}")
    return int(text)


def parse_indices(body: bytes, items: int, *, distinct: bool, what: str = "item") -> NDArray[np.uint32]:
    """Parse the candidates; ``what`` they are, for messages.

    Raises:
        ApiError: InvalidRequest, TooLarge or IndexOutOfRange, naming the first wrong index.
    """
    if len(body) % 4:
        raise _invalid(f"the body must be indices of 4 bytes each (u32, little-endian), not {len(body)} bytes")
    indices = np.frombuffer(body, "<u4")
    if len(indices) > MOST_INDICES:
        raise ApiError("TooLarge", f"at most {MOST_INDICES} indices, not {len(indices)}; ask in several requests")
    if len(indices) and int(indices.max()) >= items:
        position = int(np.flatnonzero(indices >= items)[0])
        index = int(indices[position])
        raise ApiError(
            "IndexOutOfRange",
            f"there is no {what} {index} (at position {position}): the dataset has {what}s 0 to {items - 1}"
            if items
            else f"there is no {what} {index}: the dataset has none",
            index=index,
            position=position,
        )
    if distinct and len(indices) > 1:
        ordered = np.sort(indices)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise _invalid(f"item {int(twice[0])} appears twice; mode=substitute requires distinct candidates")
    return indices


def runs_of(indices: NDArray[np.uint32], longest: int) -> Iterator[tuple[int, int]]:
    """The distinct indices as ascending half-open runs of at most ``longest`` consecutive ones, each read in one go."""
    if not len(indices):
        return
    ordered = np.sort(indices).astype(np.int64)
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    starts = ordered[np.concatenate([[0], breaks + 1])].tolist()
    lasts = ordered[np.concatenate([breaks, [len(ordered) - 1]])].tolist()
    for start, last in zip(starts, lasts, strict=True):
        for begin in range(start, last + 1, longest):
            yield begin, min(begin + longest, last + 1)


async def check_rights(principal: Principal, registration: Registration, indices: NDArray[np.uint32]) -> None:
    """Refuse items that the reader's allow-list does not cover.

    Raises:
        ApiError: AccessDenied, naming the first such item by index.
    """
    if not principal.allow:
        return
    checked = 0
    for start, stop in runs_of(indices, _TURN):
        checked += stop - start
        if checked >= _TURN:
            checked = 0
            await asyncio.sleep(0)  # a million items take seconds: let other requests run
        for index, location in enumerate(registration.locations.between(start, stop), start):
            if not principal.may_touch(location.path):
                raise ApiError(
                    "AccessDenied", f"the allow-list of this access key does not cover item {index}", index=index
                )


def allowed(principal: Principal, registration: Registration, indices: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The items that the reader's allow-list covers."""
    if not principal.allow:
        return indices
    may = (principal.may_touch(registration.locations.of(index).path) for index in indices.tolist())
    covered: NDArray[np.uint32] = indices[np.fromiter(may, dtype=bool, count=len(indices))]
    return covered


class BatchEndpoint:
    """Answers batch and lookup requests after the caller and the dataset are known.

    Args:
        batches: of this worker.
        planned: the plan.
        accounting: of all answers.
    """

    def __init__(self, batches: Batches, planned: Planned, accounting: BatchAccounting) -> None:
        self._batches = batches
        self._planned = planned
        self.accounting = accounting

    async def _ask(
        self, principal: Principal, registration: Registration, body: bytes, query: BatchQuery, plan: InForce
    ) -> BatchAsk:
        distinct = query.mode is BatchMode.SUBSTITUTE
        indices = parse_indices(body, registration.content.items, distinct=distinct)
        await check_rights(principal, registration, indices)
        return BatchAsk(
            registration,
            principal.identity,
            plan.caching,
            query.mode,
            indices,
            query.take or len(indices),
            query.ordered,
            reader=query.reader(principal.tenant),
            offers=query.offers,
            refused=plan.refused and query.mode is not BatchMode.PREFETCH,
            sweeps=query.sweeps,
        )

    async def batch(
        self, scope: Scope, send: Send, principal: Principal, registration: Registration, body: bytes
    ) -> None:
        """Answer a batch request.

        Raises:
            ApiError: the request is refused.
            BrokenBody: the answer that has begun cannot be completed.
        """
        began, counted = time.perf_counter(), AnswerTally()
        query = parse_query(scope["query_string"])
        if query.job and query.mode is BatchMode.EXACT and (order := _order(scope)):
            query = replace(query, order=order)
        plan = self._planned.of(registration, query.job)
        ask = await self._ask(principal, registration, body, query, plan)
        try:
            with metrics.BATCH_LATENCY.labels(query.mode.value).time():
                await self._send(scope, send, ask, plan, counted)
        finally:
            self.accounting.note(scope, principal, registration.name, counted, time.perf_counter() - began)

    async def _send(self, scope: Scope, send: Send, ask: BatchAsk, plan: InForce, counted: AnswerTally) -> None:
        content = ask.registration.content
        if ask.mode is BatchMode.PREFETCH:
            counts = await self._batches.prefetch(ask)
            metrics.BATCHES.labels("prefetch", "none").inc()
            await send_json(send, 202, counts, self._directives(content, plan, ask.reader))
            return
        fields = dict(scope["headers"])
        as_tar = batch_tar.MEDIA_TYPE in fields.get(b"accept", b"").decode("latin-1")
        options = SendOptions(counted)
        headers = headers_of([("content-type", batch_tar.MEDIA_TYPE if as_tar else MEDIA_TYPE)])
        headers += self._directives(content, plan, ask.reader)
        answer: Answer
        if WANTED in fields and not as_tar:
            answer, reason = await open_answer(self._batches, scope, ask, fields[WANTED])
            headers += headers_of([(WHY_BYTES, reason)]) if reason else []
        else:
            answer = await self._batches.open(ask)
        metrics.BATCHES.labels(ask.mode.value, "tar" if as_tar else _FORMS[type(answer)]).inc()
        if isinstance(answer, Unopened):
            # This does not include the reading, which takes most of the time.
            await send_attached(scope, send, ask, answer, headers, counted)
        elif as_tar:
            await batch_tar.send_tar(scope, send, ask, answer, Framing(self._batches.fetches, options), headers)
        elif isinstance(answer, Resident):
            await send_resident(scope, send, ask, answer, headers, options)
        else:
            await send_frames(scope, send, ask, answer, Framing(self._batches.fetches, options), headers)

    async def lookup(
        self, scope: Scope, send: Send, principal: Principal, registration: Registration, body: bytes
    ) -> None:
        """Answer with a bitmap: bit i of the body, least significant first, says whether candidate i is resident.

        Raises:
            ApiError: the request is refused.
        """
        if scope["query_string"]:
            raise _invalid("lookup takes no parameters")
        plan = self._planned.of(registration, "")
        ask = await self._ask(principal, registration, body, BatchQuery(BatchMode.EXACT, None, False), plan)
        bits = np.packbits(await self._batches.known.lookup(ask), bitorder="little").tobytes()
        headers = headers_of([("content-type", "application/octet-stream"), ("content-length", str(len(bits)))])
        headers += self._directives(registration.content, plan)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bits})

    async def blobs(self, send: Send, body: bytes) -> None:
        """Answer with a bitmap like ``lookup``, for digests that need not be in any registered dataset.

        Raises:
            ApiError: InvalidRequest.
        """
        bits = np.packbits(await self._batches.known.blobs(digests_in(body)), bitorder="little").tobytes()
        headers = headers_of([("content-type", "application/octet-stream"), ("content-length", str(len(bits)))])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bits})

    async def offers(self, scope: Scope, send: Send, principal: Principal, registration: Registration) -> None:
        """Answer with the indices of items that are offered to a job: u32, little-endian.

        Raises:
            ApiError: the request is refused.
            RateLimited: the tenant must wait.
        """
        query, most = parse_offers(scope["query_string"])
        plan = self._planned.of(registration, query.job)
        ask = await self._ask(principal, registration, b"", query, plan)
        indices = allowed(principal, registration, await self._batches.known.offers(ask, most))
        body = indices.astype("<u4").tobytes()
        headers = headers_of([("content-type", "application/octet-stream"), ("content-length", str(len(body)))])
        headers += self._directives(registration.content, plan, ask.reader)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _directives(self, content: Content, plan: InForce, reader: ReadingJob | None = None) -> RawHeaders:
        """The headers for the job: how its dataset is cached, the version of the plan, and the jobs that share it."""
        return headers_of(
            [
                ("x-larder-caching", plan.caching.value),
                ("x-larder-chunk", "-1"),
                ("x-larder-plan", str(plan.version)),
                ("x-larder-sharing", str(self._batches.fetches.demand.sharing(content, plan.caching, reader))),
            ]
        )


def _order(scope: Scope) -> str:
    """The order that the job claims to follow exactly; empty if it claims none."""
    return next((read_order(value.decode("latin-1")) for name, value in scope["headers"] if name == _ORDER), "")


def _invalid(detail: str) -> ApiError:
    return ApiError("InvalidRequest", detail)
