"""Results of pipelines at a gateway: elements at a mark, by number (docs/batch-protocol.md of the gateway).

A result's home is the home of its item, so requests are split like batches. No request is repeated: unread results are computed,
and unstored ones are computed again in the next epoch. A gateway that fails, or does not know results, is not asked for a while,
as in `larder.reading.fallback.Probation`: it may be restarting behind a proxy that answers 404, or have an older version. A
gateway that refuses results to this key is not asked again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, thread_time
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from larder.base.dataset import DatasetInfo, Directives
from larder.base.errors import LarderError, RequestRefused, TruncatedBatch, UnexpectedAnswer, UnknownDataset
from larder.base.retry import Retry
from larder.http.api import Api, Busy
from larder.http.connection import TRANSIENT
from larder.http.credentials import Credentials, CredentialSource
from larder.http.fleet import Fleet
from larder.http.signing import encode_query
from larder.reading.fallback import Probation
from larder.reading.frames import BUSY, CLAIMED, LATER, MEDIA_TYPE, MISSING, OK, Decoder, Received, index_form
from larder.reading.scatter import Ask, RequestOutcome, Scatter

MOST = 512
"""The most results of one request."""
_MOST_BYTES = 16 << 20
"""The most bytes of elements in one PUT of several."""
_ANSWER = 128 << 20
"""The most bytes of an answer."""
_STORED = frozenset({"stored", "known"})
_TOO_LARGE, _LARGE = 413, "too-large"
"""A gateway's status for a body that is too large, and its word for an element that is too large."""
_ABSENT = frozenset({404, 405, 501})
"""Statuses of a gateway, or of a proxy in front of it, that does not know the addresses of results."""


class ResultNames(NamedTuple):
    """The names of the results of one mark.

    Args:
        fingerprint: of the functions before the mark, 64 hexadecimal digits.
        owner: of claims: a training run.
        versions: results of an item. Result ``index + items * version`` is of the item at ``index``.
    """

    fingerprint: str
    owner: str
    versions: int = 1


@dataclass
class Lookup:
    """The results found, by number.

    Args:
        elements: as stored.
        claimed: results that the caller should compute.
        busy: results that another job computes.
        damaged: number of results that arrived with a wrong checksum; they count as missing.
        seconds: duration of the answers, from the request to the verified elements.
        cpu_seconds: processor seconds in these.
    """

    elements: dict[int, memoryview] = field(default_factory=dict)
    claimed: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)
    damaged: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass
class Stored:
    """Number of a PUT's elements that are stored, now or before, and of refused ones by reason."""

    stored: int = 0
    refused: dict[str, int] = field(default_factory=dict)


class ResultStore(Protocol):
    """The results of one mark."""

    unread: str
    """Why nothing is read now; empty while it is."""
    unstored: str
    """Why nothing is stored; empty while it is."""

    def get(self, indices: Sequence[int], *, claim: float = 0.0, wait: float = 0.0) -> Lookup:
        """See `GatewayResults`."""

    def put(
        self, elements: Mapping[int, Sequence[Any]], given_up: Collection[int] = (), *, replace: bool = False
    ) -> Stored:
        """See `GatewayResults`."""

    def close(self) -> None:
        """Close idle connections."""


class GatewayResults:
    """The results of one mark. Safe for threads; not for fork.

    Args:
        endpoint: address of the gateway.
        dataset: the dataset.
        names: of the results.
        credentials: an access key of the gateway.
        timeout: seconds of silence after which a request fails.
    """

    def __init__(
        self,
        endpoint: str,
        dataset: DatasetInfo,
        names: ResultNames,
        *,
        credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._api = Api(endpoint, credentials=credentials, timeout=timeout, retry=Retry(attempts=1))
        self._scatter = Scatter(Fleet(self._api, dataset))
        self._path = f"/-/v1/datasets/{dataset.id}/results/{names.fingerprint}"
        self._owner = names.owner
        self._items = max(1, dataset.items)
        self._sent = {"name": dataset.name} | ({"versions": str(names.versions)} if names.versions > 1 else {})
        self._probation = Probation()
        self._refused = False
        self.unread = ""
        """Why nothing is read now; empty while it is."""
        self.unstored = ""
        """Why nothing is stored; empty while it is."""

    @property
    def waiting(self) -> bool:
        """Whether the gateway is not asked at present."""
        return self._refused or self._probation.waiting

    def get(self, indices: Sequence[int], *, claim: float = 0.0, wait: float = 0.0) -> Lookup:
        """Read some results. Raises nothing: results that cannot be read are missing.

        Args:
            indices: distinct.
            claim: seconds within which the caller will compute missing results; 0 to claim nothing.
            wait: seconds to wait for results that others compute, if nothing is left for the caller.
        """
        lookup = Lookup()
        sent = {**self._sent}
        if claim and not self.unstored:
            sent |= {"claim": f"{claim:.3f}", "owner": self._owner, "wait": f"{wait:.3f}"}
        left = list(indices)
        while left and not self.waiting:
            page, left = left[:MOST], left[MOST:]
            began = perf_counter()
            try:
                outcome = self._round(page, partial(self._read, sent))
            except RequestRefused as error:
                self._refused, self.unread = True, str(error)
                break
            if outcome is None:
                break
            lookup.seconds += perf_counter() - began
            lookup.cpu_seconds += outcome.cpu_seconds
            left += self._merge(page, outcome.received, lookup)
        return lookup

    def put(
        self, elements: Mapping[int, Sequence[Any]], given_up: Collection[int] = (), *, replace: bool = False
    ) -> Stored:
        """Store elements, and end the claims on them and on ``given_up``. Raises nothing.

        Args:
            elements: each as pieces of bytes, by index.
            given_up: indices without an element.
            replace: replace stored elements. Without it, the first element of an index stays.
        """
        sent = {**self._sent, "owner": self._owner, **({"replace": "1"} if replace else {})}
        done, too_large = Stored(), list[int]()
        if self.unstored or self.waiting:
            self._lost(done, len(elements))
            return done
        for page in _pages(elements, given_up):
            before = done.stored + sum(done.refused.values())
            try:
                self._round(list(page), partial(self._write, page, done, sent))
            except RequestRefused as error:
                if error.status == _TOO_LARGE and any(pieces is not None for pieces in page.values()):
                    too_large += page
                    continue
                self.unstored = str(error)
            lost = sum(pieces is not None for pieces in page.values()) - (
                done.stored + sum(done.refused.values()) - before
            )
            self._lost(done, lost)
        if too_large:
            done.refused[_LARGE] = done.refused.get(_LARGE, 0) + len(too_large)
            self.put({}, too_large)  # others need not wait for them
        return done

    def _lost(self, done: Stored, elements: int) -> None:
        """Count elements that no node stored."""
        reason = "refused" if self.unstored or self.unread else "unreachable"
        if elements:
            done.refused[reason] = done.refused.get(reason, 0) + elements

    def close(self) -> None:
        """Close idle connections."""
        self._api.connection.close()
        self._scatter.fleet.close()

    def _round(self, indices: Sequence[int], ask: Ask) -> RequestOutcome | None:
        """One request to each home, or to the one address; ``None`` if that failed, or the gateway has no results.

        Raises:
            RequestRefused: the gateway refuses them.
        """
        wanted = np.array(indices, np.uint32)
        try:
            items = wanted % self._items
            outcome = self._scatter.round(items, len(wanted), ask, sent=wanted) or ask(self._api, wanted, len(wanted))
            if outcome.error is not None:
                raise outcome.error
        except UnknownDataset:
            self._probation.failed()  # reading the dataset's items registers it again
            return None
        except (LarderError, ValueError, *TRANSIENT) as error:
            status = error.status if isinstance(error, RequestRefused | UnexpectedAnswer) else 0
            if status in _ABSENT:
                # All workers give the same text, so the user sees it once.
                endpoint = self._api.endpoint
                self.unread = (
                    f"the gateway at {endpoint} has no results of pipelines ({status}); it may be an older one"
                )
            elif isinstance(error, RequestRefused):
                raise
            self._probation.failed()
            return None
        self.unread = ""
        self._probation.answered()
        self._scatter.fleet.refresh_if_due()
        return outcome

    def _read(self, sent: Mapping[str, str], api: Api, indices: NDArray[np.uint32], _wanted: int) -> RequestOutcome:
        outcome, began = RequestOutcome(), thread_time()
        headers = {"Accept": MEDIA_TYPE, "Content-Type": "application/octet-stream"}
        query, body = encode_query(sent.items()), indices.astype("<u4").tobytes()
        try:
            with api.exchange("POST", f"{self._path}/batch", query=query, headers=headers, body=body) as response:
                decoder = Decoder(indices, length=response.length, limit=_ANSWER, endpoint=api.endpoint)
                outcome.received = decoder.received
                outcome.directives = Directives()
                decoder.decode(response)
        except (TruncatedBatch, UnexpectedAnswer, Busy, *TRANSIENT) as error:
            outcome.error = error
        outcome.cpu_seconds = thread_time() - began
        return outcome

    def _write(
        self,
        page: Mapping[int, Sequence[Any] | None],
        done: Stored,
        sent: Mapping[str, str],
        api: Api,
        indices: NDArray[np.uint32],
        _wanted: int,
    ) -> RequestOutcome:
        outcome = RequestOutcome(directives=Directives())
        chosen = {index: page[index] for index in indices.tolist()}
        body = index_form(
            [(index, MISSING if pieces is None else OK, pieces or ()) for index, pieces in chosen.items()]
        )
        query, headers = encode_query(sent.items()), {"Content-Type": MEDIA_TYPE}
        try:
            with api.exchange("PUT", self._path, query=query, headers=headers, body=body) as response:
                results = api.parsed(response.status, response.read()).get("results")
        except (UnexpectedAnswer, Busy, *TRANSIENT) as error:
            outcome.error = error
            return outcome
        if not isinstance(results, list) or len(results) != len(chosen):
            outcome.error = UnexpectedAnswer(
                api.endpoint, 200, f"it says {json.dumps(results)[:100]} of {len(chosen)} results"
            )
            return outcome
        for result, pieces in zip(results, chosen.values(), strict=True):
            if result in _STORED:
                done.stored += 1
            elif pieces is not None:
                done.refused[str(result)] = done.refused.get(str(result), 0) + 1
        return outcome

    @staticmethod
    def _merge(page: Sequence[int], received: Received, lookup: Lookup) -> list[int]:
        """Add the received elements; returns the results that the answer had no room for."""
        lookup.elements.update(
            (page[position], data) for position, data in zip(received.positions, received.data, strict=True)
        )
        lookup.damaged += received.corrupt
        later = []
        for position, failure in received.failures.items():
            index = page[position]
            (lookup.claimed.discard if failure.status != CLAIMED else lookup.claimed.add)(index)
            (lookup.busy.discard if failure.status != BUSY else lookup.busy.add)(index)
            if failure.status == LATER:
                later.append(index)
        return later if received.positions else []


def _pages(elements: Mapping[int, Sequence[Any]], given_up: Collection[int]) -> list[dict[int, Sequence[Any] | None]]:
    """The entries of each request: at most ``MOST``, and at most ``_MOST_BYTES`` unless a single one has more."""
    pages: list[dict[int, Sequence[Any] | None]] = [{}]
    size = 0
    for index, pieces in [*elements.items(), *((index, None) for index in given_up)]:
        bytes_ = sum(map(len, pieces)) if pieces is not None else 0
        if pages[-1] and (len(pages[-1]) == MOST or size + bytes_ > _MOST_BYTES):
            pages.append({})
            size = 0
        pages[-1][index] = pieces
        size += bytes_
    return [page for page in pages if page]
