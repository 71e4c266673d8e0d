"""What tells the fleet that a job is there: its registration, and heartbeats from a thread of their own.

The fleet is asked for advice; it is never needed. Whatever goes wrong in the thread is counted and tried again with the next
heartbeat, and training goes on with the directives that were heard last.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from larder.api import Api, Busy
from larder.connection import TRANSIENT
from larder.errors import LarderError, RequestRefused, UnexpectedAnswer, UnknownDataset
from larder.fleet import EVERY, SELDOM, Neighbours
from larder.planner.upcoming import Upcoming
from larder.timing import PHASES, Timing

_JSON = {"Content-Type": "application/json"}
_CREATED = frozenset({200, 201})
_SHORTEST, _LONGEST = 0.1, 60.0
_ID = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger("larder")


@dataclass(frozen=True, slots=True)
class JobDirectives:
    """What the fleet asks of a job.

    Args:
        caching: mode in force for the dataset: ``full``, ``static``, ``chunked`` or ``none``.
        cache: whether the job's reads use the cache now; it is the gateways that act on it.
        phase: what its mini-batches are counted as: ``probe-miss``, ``measure`` or ``steady``.
        chunk: where jobs that begin now should begin; -1: anywhere.
        plan: version of the fleet's plan.
        preload: the fleet loads chunks by itself: nothing need be announced.
        heartbeat: seconds from one heartbeat to the next.
    """

    caching: str
    cache: bool
    phase: str
    chunk: int
    plan: int
    preload: bool
    heartbeat: float

    @classmethod
    def from_json(cls, document: object) -> JobDirectives:
        """Read what a gateway says.

        Raises:
            ValueError: a field is missing or no such thing; the message names it.
        """
        if not isinstance(document, Mapping):
            raise ValueError(f'"directives" is {document!r}')
        found: dict[str, Any] = {name: document.get(name) for name in cls.__slots__}
        for name, kind in {"caching": str, "cache": bool, "chunk": int, "plan": int, "preload": bool}.items():
            if not isinstance(found[name], kind):
                raise ValueError(f'"{name}" of the directives is {found[name]!r}')
        if found["phase"] not in PHASES:
            raise ValueError(f'"phase" of the directives is {found["phase"]!r}')
        if isinstance(found["heartbeat"], bool) or not isinstance(found["heartbeat"], int | float):
            raise ValueError(f'"heartbeat" of the directives is {found["heartbeat"]!r}')
        found["heartbeat"] = min(max(float(found["heartbeat"]), _SHORTEST), _LONGEST)
        return cls(**found)


class Named(Protocol):
    """What a job calls its dataset."""

    def __call__(self) -> str:
        """Its name or id; asking may make requests."""

    def forget(self) -> bool:
        """The gateway does not know it; whether asking again makes it known."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a job says of itself."""

    name: str
    dataset: Named
    batch_size: int
    gpus: int
    ranks: int
    rank: int
    caching: str

    def document(self) -> dict[str, object]:
        """As it is sent."""
        return {
            "job": self.name,
            "dataset": self.dataset(),
            "gpus": self.gpus,
            "batch_size": self.batch_size,
            "ranks": self.ranks,
            "caching": self.caching,
        }


class Heart:
    """A rank's side of a job: what it knows, and what it says of itself.

    Args:
        api: of the gateway, without patience of its own.
        registration: what the job says of itself.
    """

    def __init__(self, api: Api, registration: Registration) -> None:
        self.api = api
        self.registration = registration
        self.timing = Timing()
        self.place = Upcoming()
        self.place_wanted = True
        """Whether the next heartbeat waits for a place; it is the training loop that knows it."""
        self.directives: JobDirectives | None = None
        self.dataset = ""
        """Id of the dataset that the job was registered for, once a gateway has said it."""
        self.stopped = threading.Event()
        self.counts = {"heartbeats": 0, "failed": 0, "registered": 0}
        self.last_error = ""
        """Why a request failed that nobody waited for, the last of them."""
        self._warned: set[str] = set()
        self._joining = threading.Lock()
        self._neighbours = Neighbours(api)
        self._next_look = 0.0
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"api": self.api, "registration": self.registration}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
        self._process = 0

    @property
    def own(self) -> bool:
        """Whether this is the process that the job was made in, and no copy in a worker."""
        return self._process == os.getpid()

    @property
    def nodes(self) -> int:
        """How many nodes of the gateway's fleet can be asked, should the gateway go."""
        return len(self._neighbours.reached)

    def begin(self) -> None:
        """Start the thread, if it is not there; a copy has none."""
        if self._thread is None and self.own and not self.stopped.is_set():
            self._thread = threading.Thread(target=self.run, name="larder-job", daemon=True)
            self._thread.start()

    def run(self) -> None:
        """Beat until stopped."""
        while True:
            try:
                self.beat()
                self._look()
            except (LarderError, ValueError, *TRANSIENT) as error:
                self._failed(error)
            directives = self.directives
            if self.stopped.wait(1.0 if directives is None else directives.heartbeat):
                return

    def beat(self) -> None:
        """Register if that was not done, and say where the rank is."""
        self.join()
        try:
            document = self._post("heartbeat", self._said())
        except RequestRefused as error:
            if error.code != "UnknownJob" or self.stopped.is_set():
                raise
            self.register()
            return
        self.place_wanted = True
        self.counts["heartbeats"] += 1
        self.heard(document)

    def join(self) -> JobDirectives:
        """The directives heard last; the job is registered if that was not done. Raises as ``register``.

        The thread and the training loop begin at the same moment: the second waits for what the first is told.
        """
        if not self.own:  # in a process that was forked, the lock may be that of a thread which is not there
            return self.directives or self.register()
        with self._joining:
            return self.directives or self.register()

    def register(self) -> JobDirectives:
        """Register the job, or join it.

        Raises:
            Busy: asking again later may help, as may what is in ``TRANSIENT``.
            RequestRefused: the gateway said no.
            UnexpectedAnswer: what answered is no gateway.
        """
        try:
            document = self._exchange("/-/v1/jobs", self.registration.document(), _CREATED)
        except UnknownDataset:
            if not self.registration.dataset.forget():
                raise
            document = self._exchange("/-/v1/jobs", self.registration.document(), _CREATED)
        self.counts["registered"] += 1
        found = document.get("dataset")
        if not self.dataset and isinstance(found, str) and _ID.fullmatch(found):
            self.dataset = found
        return self.heard(document)

    def order(self, epoch: int, proposal: tuple[int, ...]) -> tuple[int, ...]:
        """Which order the chunks of an epoch have. Raises as ``register``."""
        found = self._post(f"epochs/{epoch}", {"order": list(proposal)}).get("order")
        if not isinstance(found, list) or not all(type(chunk) is int for chunk in found):
            raise UnexpectedAnswer(self.api.endpoint, 200, f'"order" is {found!r}')
        if sorted(found) != sorted(proposal):
            raise UnexpectedAnswer(self.api.endpoint, 200, f"the order of {len(proposal)} chunks is {found!r}")
        return tuple(found)

    def leave(self, seconds: float) -> None:
        """Stop, and say good-bye, which takes so many seconds at most and may fail."""
        self.stopped.set()
        if self.directives is None:
            return
        leaving = threading.Thread(target=self._leave, name="larder-job-leaves", daemon=True)
        leaving.start()
        leaving.join(seconds)

    def _leave(self) -> None:
        try:
            self._say_good_bye()
        except (LarderError, ValueError, *TRANSIENT) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Count it. What no repetition will mend, such as a refusal, is also said to people: each kind once."""
        self.counts["failed"] += 1
        self.last_error = str(error) or type(error).__name__
        kind = error.code if isinstance(error, RequestRefused) else type(error).__name__
        if isinstance(error, (Busy, *TRANSIENT)) or kind in self._warned:
            return
        self._warned.add(kind)
        _log.warning("the fleet does not hear of the job %r: %s", self.registration.name, self.last_error)

    def _say_good_bye(self) -> None:
        if self.registration.ranks > 1:
            self.place = Upcoming(self.place.epoch)
            self._post("heartbeat", self._said())
            return
        with self.api.exchange("DELETE", self._path(""), expected=frozenset({204})) as response:
            response.read()

    def heard(self, document: Mapping[str, Any]) -> JobDirectives:
        """Take in the directives of an answer."""
        try:
            directives = JobDirectives.from_json(document.get("directives"))
        except ValueError as error:
            raise UnexpectedAnswer(self.api.endpoint, 200, str(error)) from error
        self.timing.change(directives.phase)
        self.directives = directives
        return directives

    def _said(self) -> dict[str, object]:
        place = self.place
        return {
            "rank": self.registration.rank,
            "epoch": place.epoch,
            "upcoming": list(place.chunks),
            "epoch_left": place.epoch_left,
            "phases": self.timing.as_json(),
        }

    def _post(self, what: str, document: Mapping[str, object]) -> dict[str, Any]:
        return self._exchange(self._path(f"/{what}"), document, frozenset({200}))

    def _look(self) -> None:
        """See who else can be asked, should the gateway go."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + EVERY
        try:
            for node in self._neighbours.ready():
                self._neighbours.reach(node)
        except (LarderError, ValueError, *TRANSIENT):
            self._next_look = time.monotonic() + SELDOM  # it knows of no fleet

    def _exchange(self, path: str, document: Mapping[str, object], expected: frozenset[int]) -> dict[str, Any]:
        """One request to the gateway; to another node of its fleet if the gateway cannot be reached."""
        try:
            return self._exchange_with(self.api, path, document, expected)
        except TRANSIENT:
            for api in self._neighbours.reached.values():
                with suppress(*TRANSIENT):
                    return self._exchange_with(api, path, document, expected)
            raise

    def _exchange_with(
        self, api: Api, path: str, document: Mapping[str, object], expected: frozenset[int]
    ) -> dict[str, Any]:
        body = json.dumps(document).encode()
        try:
            with api.exchange("POST", path, headers=_JSON, body=body, expected=expected) as response:
                return api.parsed(response.status, response.read())
        except RequestRefused as error:
            if not api.renewable(error):
                raise
            raise Busy(f"the credentials have expired: {error}") from error

    def _path(self, what: str) -> str:
        return f"/-/v1/jobs/{quote(self.registration.name, safe='')}{what}"
