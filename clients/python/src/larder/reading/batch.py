"""Fetching many items of a dataset in one request, with recovery from every transient failure.

After an answer that was cut, damaged or temporarily refused, only the missing items are requested again. Attempts are counted by
cause since the last received item: a gateway that delivers a little each time is slow, not gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from larder.base.buffers import Buffers
from larder.base.dataset import DatasetInfo, Directives
from larder.base.errors import (
    DigestFileError,
    GatewayUnavailable,
    LarderError,
    RequestRefused,
    TruncatedBatch,
    UnexpectedAnswer,
    UnknownDataset,
)
from larder.base.later import Unpack
from larder.base.options import refuse_unknown
from larder.base.retry import Patience, Retry
from larder.base.stats import BY_NODE, BY_WAY, Counters, NoCounters
from larder.http.api import Api, Busy
from larder.http.client import Client
from larder.http.connection import TRANSIENT
from larder.http.credentials import Credentials, CredentialSource, source_of
from larder.http.fleet import Fleet
from larder.http.local import LocalResponse, acceptable, way_of
from larder.http.s3 import S3
from larder.http.signing import encode_query
from larder.reading.fallback import Origin, Probation, warn_once
from larder.reading.frames import LIMIT, MEDIA_TYPE, ORIGIN_ERROR, Decoder, Received
from larder.reading.merging import MAX_ITEMS, Fetched, Merge
from larder.reading.scatter import RequestOutcome, Scatter

__all__ = ["BatchReader", "Counters", "Fetched", "Indices"]

Indices = NDArray[np.integer[Any]] | Sequence[int]
T = TypeVar("T")
_MAX_MOVES = 64
"""How often requests of one batch may move to other nodes without progress before that counts as a failed attempt."""
MOST_OFFERS = 65_536
"""The most items that a gateway offers."""
_INDICES_TYPE = "application/octet-stream"
_ORDER = "x-larder-order"
"""A header rather than a parameter: gateways that do not know it ignore it."""


class ReaderOptions(TypedDict, total=False):
    """The options of a `BatchReader` that have a default.

    Args:
        credentials: an access key of the gateway; ``None`` searches the usual places of AWS's tools.
        timeout: seconds of silence after which an attempt fails (30).
        retry: repetition of requests without progress; ``Retry.outage`` counts from the last received item.
        fallback: ``"origin"`` reads directly from S3 while the gateway is unavailable (at ``LARDER_ORIGIN_ENDPOINT``, else
            AWS); or the origin's endpoint; or an ``S3`` with credentials of its own.
        digest_file: of the dataset, to register it again at a gateway that has lost it. Required for ``fallback``, where it must
            not be at ``s3://bucket/key``.
        split: request items directly from their home nodes, if the fleet has several and all are reachable (``True``).
        stats: its ``add(name, value)`` is called for each event.
        limit: maximum bytes of one answer; a larger one is refused.
    """

    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None
    timeout: float
    retry: Retry | None
    fallback: str | S3 | None
    digest_file: str | os.PathLike[str] | None
    split: bool
    stats: Counters | None
    limit: int


@dataclass(frozen=True, kw_only=True)
class _ReaderSettings:
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None
    timeout: float = 30.0
    retry: Retry | None = None
    fallback: str | S3 | None = None
    digest_file: str | os.PathLike[str] | None = None
    split: bool = True
    stats: Counters | None = None
    limit: int = LIMIT


class BatchReader:
    """Reads items of one dataset through a gateway. Safe to share between threads, to fork, to copy and to pickle.

    Args:
        endpoint: address of the gateway.
        dataset: from ``Client.register`` or ``Client.dataset``.
        options: see `ReaderOptions`.

    Raises:
        ValueError: the endpoint is not an address, or ``fallback`` lacks ``digest_file``.
        TypeError: unknown option.
        LarderError: ``fallback`` needs a package that is not installed; the message names it.
    """

    def __init__(self, endpoint: str, dataset: DatasetInfo, **options: Unpack[ReaderOptions]) -> None:
        refuse_unknown(options, *ReaderOptions.__annotations__)
        settings = _ReaderSettings(**options)
        credentials, timeout, fallback = source_of(settings.credentials), settings.timeout, settings.fallback
        self.dataset = dataset
        self.stats: Counters = NoCounters() if settings.stats is None else settings.stats
        self._retry = settings.retry or Retry()
        # Only batches are worth waiting for; other requests are repeated later.
        self._api = Api(endpoint, credentials=credentials, timeout=timeout, retry=replace(self._retry, outage=0.0))
        self._digest_file = None if settings.digest_file is None else os.fspath(settings.digest_file)
        self._limit = settings.limit
        self._buffers = Buffers()
        self._scatter = Scatter(Fleet(self._api, dataset)) if settings.split else None
        self._probation = Probation()
        self._origin: Origin | None = None
        if fallback is not None:
            local = None if str(settings.digest_file).startswith("s3://") else settings.digest_file
            self._origin = Origin(fallback, local, dataset, timeout=timeout, retry=self._api.retry)

    def __repr__(self) -> str:
        return f"BatchReader({self.endpoint!r}, {self.dataset.name!r})"

    @property
    def endpoint(self) -> str:
        """Address of the gateway."""
        return self._api.endpoint

    @property
    def fleet(self) -> Fleet | None:
        """The reader's view of the fleet; ``None`` without ``split``."""
        return None if self._scatter is None else self._scatter.fleet

    def close(self) -> None:
        """Close idle connections; the reader stays usable."""
        self._api.connection.close()
        if self.fleet is not None:
            self.fleet.close()

    def fetch(
        self,
        indices: Indices,
        *,
        mode: str = "exact",
        take: int | None = None,
        ordered: bool = False,
        epoch: int = 0,
        job: str = "",
        order: str = "",
    ) -> Fetched:
        """Fetch items of the dataset. The result lists unavailable items in ``failed``.

        Args:
            indices: of the items; distinct candidates in mode ``substitute``.
            mode: ``exact``: all of them; ``substitute``: the ``take`` of them that cost least.
            take: number of candidates to deliver.
            ordered: in the order of ``indices`` rather than of arrival.
            epoch: epoch of the training run, for the gateway's decisions.
            job: name of the training run, also for these decisions.
            order: name of the order that the job follows exactly (``EpochOrder.name``), so that gateways keep the items that it
                reads next.

        Raises:
            ValueError: invalid mode, ``take`` or candidates.
            IndexError: the dataset has no such item.
            GatewayUnavailable: the retries are used up, and there is no fallback.
            UnknownDataset: the gateway does not know the dataset, and there is no ``digest_file`` to register it with.
            RequestRefused: the gateway refuses the caller or the request.
            UnexpectedAnswer: the endpoint is not a Larder gateway, and there is no fallback.
            CredentialsMissing: no access key was found.
        """
        if mode not in ("exact", "substitute"):
            raise ValueError(f'mode must be "exact" or "substitute", not {mode!r}')
        if (take is None) is (mode == "substitute") or (take is not None and take < 0):
            raise ValueError(f"take (at least 0) is required in mode substitute only; got mode={mode!r}, take={take}")
        request = self._checked(indices, distinct=mode == "substitute")
        return self._fetched(
            request, take, {"mode": mode, "epoch": str(epoch), "job": job, _ORDER: order}, ordered=ordered
        )

    def _fetched(
        self, request: NDArray[np.uint32], take: int | None, parameters: dict[str, str], *, ordered: bool = False
    ) -> Fetched:
        """Items from the gateway, or else from the fallback."""
        merge = Merge(request, take, self._api.retry.attempts)
        directives = Directives()
        if not (self._origin and self._probation.waiting):
            try:
                # A gateway on probation gets a single attempt.
                patience = Patience(replace(self._retry, attempts=1) if self._probation.active else self._retry)
                directives = self._recovering(lambda: self._through_gateway(merge, parameters, patience), patience)
                self._probation.answered()
                if self.fleet is not None:
                    self.fleet.refresh_if_due()
            except GatewayUnavailable as error:
                if self._origin is None:
                    raise
                self._probation.failed()
                warn_once(self.endpoint, error)
        while self._origin and not merge.done():
            asked = merge.ask()[: merge.wanted]
            self.stats.add("fallback_reads", len(asked))
            merge.accept(asked, self._origin.read(request[asked]), final=True)
        return merge.result(directives, ordered=ordered)

    def fetch_shared(self, indices: NDArray[np.uint32], *, take: int, offers: int, epoch: int, job: str) -> Fetched:
        """Fetch ``take`` candidates: the first ``take`` of ``indices``, or others that also serve other jobs. Raises what `fetch`
        raises.

        Args:
            indices: the next ones of the job's own order, then the gateway's offers, then more of the order.
            take: number of candidates to deliver, and of the job's own first ones.
            offers: number of the following candidates, which the gateway offered.
            epoch: epoch of the training run.
            job: name of the training run.
        """
        shared = {"mode": "substitute", "epoch": str(epoch), "job": job, "offers": str(offers)}
        return self._fetched(self._checked(indices, distinct=True), take, shared)

    def offers(self, most: int, *, epoch: int, job: str) -> NDArray[np.uint32]:
        """Cached items that other jobs have read in their epochs and this one has not: they leave the cache soon.

        Raises:
            GatewayUnavailable: and others, as ``fetch``.
        """
        query = encode_query([("epoch", str(epoch)), ("job", job), ("most", str(min(most, MOST_OFFERS)))])
        _, body = self._api.ask("GET", self._path("offers"), query=query)
        items = np.frombuffer(body[: len(body) // 4 * 4], "<u4")
        return items[items < self.dataset.items].astype(np.uint32)

    def prefetch(self, indices: Indices, *, epoch: int | None = None) -> dict[str, int]:
        """Ask the gateway to cache items soon. Returns the numbers of ``resident``, ``fetching`` and ``refused`` ones.

        While items are read from the fallback, no request is sent and all are refused. ``epoch`` is that of a training run that
        will read every item: the gateway then also reads their neighbours in the same objects, if it has room.

        Raises:
            GatewayUnavailable: and others, as ``fetch``.
        """
        counts = {"resident": 0, "fetching": 0, "refused": 0}
        if self._probation.active:
            return {**counts, "refused": len(indices)}
        for part in self._parts(indices):
            body = self._ask("batch", "mode=prefetch" if epoch is None else f"epoch={epoch}&mode=prefetch", part, 202)
            for name, value in self._api.parsed(202, body).items():
                if isinstance(value, int):
                    counts[name] = counts.get(name, 0) + value
        return counts

    def lookup(self, indices: Indices) -> NDArray[np.bool_]:
        """Whether each item is in the cache now.

        Raises:
            GatewayUnavailable: and others, as ``fetch``.
        """
        cached = [np.zeros(0, dtype=np.bool_)]
        for part in self._parts(indices):
            body = self._ask("lookup", "", part, 200)
            if len(body) != (len(part) + 7) // 8:
                raise UnexpectedAnswer(self.endpoint, 200, f"{len(body)} bytes of bitmap for {len(part)} items")
            bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8), count=len(part), bitorder="little")
            cached.append(bits.astype(np.bool_))
        return np.concatenate(cached)

    def _through_gateway(self, merge: Merge, parameters: dict[str, str], patience: Patience) -> Directives:
        """Request until nothing is missing."""
        directives, moves = Directives(), 0
        while not merge.done():
            asked = merge.ask()
            outcome = self._round(merge.request[asked], merge.wanted, parameters)
            self._count(outcome)
            directives = outcome.directives or directives
            moves += outcome.moved
            pause: float | None = 0.0
            if merge.accept(asked, outcome.received, spared=self._retry.outage > 0):
                patience.renew()
                moves = 0
                if outcome.error:
                    pause = patience.brief()
            elif not outcome.moved or moves > _MAX_MOVES or outcome.error:
                pause = patience.pause(outcome.cause)
            if merge.done():
                break
            if pause is None:
                raise self._gone(merge, patience.failures, outcome)
            # The rest no longer has the three parts of the original request.
            parameters = {name: value for name, value in parameters.items() if name != "offers"}
            self.stats.add("retries", 1)
            time.sleep(max(pause, outcome.error.retry_after if isinstance(outcome.error, Busy) else 0.0))
        return directives

    def _round(self, indices: NDArray[np.uint32], wanted: int, parameters: Mapping[str, str]) -> RequestOutcome:
        """Send one request to each home node, or to the one address. Raises what ``_request`` raises."""
        ask = partial(self._request, parameters)
        offers = int(parameters["offers"]) if "offers" in parameters else None
        scattered = None if self._scatter is None else self._scatter.round(indices, wanted, ask, offers)
        return ask(self._api, indices, wanted, offers=offers) if scattered is None else scattered

    def _request(
        self,
        parameters: Mapping[str, str],
        api: Api,
        indices: NDArray[np.uint32],
        wanted: int,
        *,
        offers: int | None = None,
    ) -> RequestOutcome:
        """Send one request. Received items count even if it fails.

        Raises:
            RequestRefused: the gateway refused the request.
        """
        outcome, way = RequestOutcome(), ""
        sent = {**parameters, "take": str(wanted) if parameters["mode"] == "substitute" else ""}
        if offers is not None:
            sent["offers"] = str(offers)
        order = sent.pop(_ORDER, "")
        query = encode_query((name, value) for name, value in sent.items() if value)
        headers = {"Accept": MEDIA_TYPE, "Content-Type": _INDICES_TYPE}
        if order:
            headers[_ORDER] = order
        connection = api.connection
        files = connection.takes_files
        if files:
            headers["x-larder-descriptors"] = str(acceptable())
        try:
            with api.exchange(
                "POST", self._path("batch"), query=query, headers=headers, body=indices.tobytes()
            ) as response:
                outcome.directives = self._directives(response)
                decoder = Decoder(
                    indices,
                    take=min(wanted, len(indices)),
                    length=response.length,
                    limit=self._limit,
                    endpoint=api.endpoint,
                    files=response.attached if isinstance(response, LocalResponse) else None,
                )
                outcome.received = decoder.received
                way = way_of(response, connection.by_tcp, files)
                decoder.decode(response, self._buffers)
        # An invalid answer may be damaged, or a proxy's page while the gateway restarts: retry.
        except (TruncatedBatch, UnexpectedAnswer, Busy, *TRANSIENT) as error:
            outcome.error = error
            outcome.broken = int(isinstance(error, TruncatedBatch | HTTPException))
        received = outcome.received
        outcome.by_way = {"files": received.attached}
        if way:
            outcome.by_way[way] = len(received.positions) - received.attached
        if files and (received.corrupt or not isinstance(outcome.error, Busy | None)):
            connection.avoid_files()
        return outcome

    def _gone(self, merge: Merge, attempts: int, outcome: RequestOutcome) -> LarderError:
        if isinstance(outcome.error, UnexpectedAnswer) and self._origin is None:
            return outcome.error
        cause = outcome.error or self._why(merge, outcome.received)
        unavailable = GatewayUnavailable(self.endpoint, attempts, cause)
        unavailable.__cause__ = cause
        return unavailable

    def _why(self, merge: Merge, received: Received) -> LarderError:
        """Why items are missing although the answers are complete."""
        failure = next((failed for failed in received.failures.values() if failed.status == ORIGIN_ERROR), None)
        if failure or received.status == ORIGIN_ERROR:
            example = f", such as {failure.bucket}/{failure.key!r}: {failure.detail}" if failure else ""
            return LarderError(
                f"its origin cannot be reached, or fails every item{example}; {merge.wanted} are missing"
            )
        detail = "the gateway answers, but items are missing or damaged"
        return TruncatedBatch(merge.came, merge.wanted, detail)

    def _count(self, outcome: RequestOutcome) -> None:
        counts = {
            "requests": outcome.requests,
            "crc_errors": outcome.received.corrupt,
            "truncated": outcome.broken,
            "split": int(bool(outcome.by_node)),
            "redirected": outcome.moved,
            **{f"{BY_NODE}{node}": items for node, items in outcome.by_node.items()},
            **{f"{BY_WAY}{way}": items for way, items in outcome.by_way.items()},
        }
        for name, count in counts.items():
            if count:
                self.stats.add(name, count)

    def _directives(self, response: HTTPResponse) -> Directives:
        kind = response.headers.get_content_type()
        if kind != MEDIA_TYPE:
            raise UnexpectedAnswer(self.endpoint, response.status, f"Content-Type {kind}, not {MEDIA_TYPE}")
        try:
            return Directives.from_headers(response.headers)
        except ValueError as error:
            raise UnexpectedAnswer(self.endpoint, response.status, f"its directives: {error}") from error

    def _recovering(self, call: Callable[[], T], patience: Patience) -> T:
        """The call's result; registers an unknown dataset again, with retries, and renews expired credentials once."""
        renewed = registered = False
        while True:
            try:
                return call()
            except UnknownDataset as error:
                if self._digest_file is None:
                    raise
                failure: LarderError | None = error if registered else None
                try:
                    self._register(self._digest_file)
                    registered = True
                except GatewayUnavailable as gone:
                    failure = gone
                if failure is not None:
                    pause = patience.pause("registration")
                    if pause is None:
                        raise failure from failure.__cause__
                    time.sleep(pause)
            except RequestRefused as error:
                if renewed or not self._api.renewable(error):
                    raise
                renewed = True

    def _register(self, digest_file: str) -> None:
        """Register at the one address, or at the first node that accepts: the address may be that of the failed node."""
        others = [] if self.fleet is None else self.fleet.addresses()
        for address in [self.endpoint, *others] if others else []:
            try:
                return self._register_at(address, digest_file, replace(self._api.retry, attempts=1))
            except GatewayUnavailable:
                continue
        return self._register_at(self.endpoint, digest_file, self._api.retry)

    def _register_at(self, address: str, digest_file: str, retry: Retry) -> None:
        connection = self._api.connection
        client = Client(address, credentials=connection.credentials, timeout=connection.timeout, retry=retry)
        try:
            # By content: the file may have changed, and must not replace the registration of this name.
            stem = self.dataset.name.removesuffix(f"-{self.dataset.id[:16]}")
            known = client.register(
                stem,
                digest_file,
                caching=self.dataset.caching,
                by_content=True,
                request_payer=self.dataset.request_payer,
            )
        finally:
            client.close()
        if known.id != self.dataset.id:
            raise DigestFileError(
                f"{digest_file} is of dataset {known.id}, not of {self.dataset.id} ({self.dataset.name})"
            )

    def _ask(self, what: str, query: str, indices: NDArray[np.uint32], status: int) -> bytes:
        def ask() -> tuple[int, bytes]:
            return self._api.ask(
                "POST",
                self._path(what),
                query=query,
                headers={"Content-Type": _INDICES_TYPE},
                body=indices.tobytes(),
                expected=frozenset({status}),
            )

        return self._recovering(ask, Patience(self._api.retry))[1]

    def _path(self, what: str) -> str:
        return f"/-/v1/datasets/{self.dataset.id}/{what}"

    def _parts(self, indices: Indices) -> Iterator[NDArray[np.uint32]]:
        request = self._checked(indices)
        for start in range(0, len(request), MAX_ITEMS):
            yield request[start : start + MAX_ITEMS]

    def _checked(self, indices: Indices, *, distinct: bool = False) -> NDArray[np.uint32]:
        wide = np.asarray(indices)
        if wide.size and (wide.ndim != 1 or wide.dtype.kind not in "iu"):
            raise ValueError(f"indices must be whole numbers in one dimension, not {wide.dtype} in {wide.ndim}")
        outside = wide[(wide < 0) | (wide >= self.dataset.items)] if wide.size else wide
        if len(outside):
            raise IndexError(
                f"index out of range: item {outside[0]} of dataset {self.dataset.name}, which has {self.dataset.items}"
            )
        if distinct:
            ordered = np.sort(wide)  # np.unique takes seconds for a million items
            if np.any(ordered[1:] == ordered[:-1]):
                raise ValueError("a candidate is listed twice")
        return wide.astype("<u4")
