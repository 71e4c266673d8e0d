"""A job's registration with the fleet, and the thread that sends its heartbeats.

The fleet advises; training never depends on it. A failed heartbeat is counted, the next one tries again, and the job keeps the
last directives that it received.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from larder.base.errors import LarderError, RequestRefused, UnexpectedAnswer, UnknownDataset
from larder.base.options import whole_number
from larder.base.stats import EpochReads
from larder.http.api import Api, Busy
from larder.http.connection import TRANSIENT
from larder.http.fleet import REFRESH_INTERVAL, RETRY_INTERVAL, Neighbours
from larder.training.timing import PHASES, Counts, Timing

CACHING = ("auto", "on", "off")
_JSON = {"Content-Type": "application/json"}
_CREATED = frozenset({200, 201})
_MIN_HEARTBEAT, _MAX_HEARTBEAT = 0.1, 60.0
"""Seconds between heartbeats: directives outside of this range are clamped to it."""
_DECIDED_WITHIN = 5.0
"""Seconds that the beginning of a pipeline waits for the fleet's decision."""
_FIRST_HEARTBEAT = 1.0
"""Seconds until the next attempt while no directives have arrived."""
_JOB_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DATASET_ID = re.compile(r"[0-9a-f]{64}")
_MAX_VALUES = {"batch_size": 1 << 20, "gpus": 1 << 16, "ranks": 1 << 16}
"""Largest accepted values: items of a mini-batch, GPUs and ranks of a job."""
_log = logging.getLogger("larder")


@dataclass(frozen=True, slots=True)
class JobDirectives:
    """The fleet's instructions for a job.

    Args:
        caching: caching mode of the dataset: ``full``, ``part`` or ``none``.
        cache: whether the job's reads use the cache now; the gateways enforce it.
        phase: phase that its mini-batches are counted in: ``probe-miss``, ``measure`` or ``steady``.
        plan: version of the fleet's plan.
        heartbeat: seconds between heartbeats.
    """

    caching: str
    cache: bool
    phase: str
    plan: int
    heartbeat: float

    @classmethod
    def from_json(cls, document: object) -> JobDirectives:
        """Parse the ``directives`` of a gateway's answer.

        Raises:
            ValueError: a field is missing or has the wrong type; the message names it.
        """
        if not isinstance(document, Mapping):
            raise ValueError(f'"directives" is {document!r}')
        fields: dict[str, Any] = {name: document.get(name) for name in cls.__slots__}
        for name, kind in {"caching": str, "cache": bool, "plan": int}.items():
            if not isinstance(fields[name], kind):
                raise ValueError(f'"{name}" of the directives is {fields[name]!r}')
        if fields["phase"] not in PHASES:
            raise ValueError(f'"phase" of the directives is {fields["phase"]!r}')
        if isinstance(fields["heartbeat"], bool) or not isinstance(fields["heartbeat"], int | float):
            raise ValueError(f'"heartbeat" of the directives is {fields["heartbeat"]!r}')
        fields["heartbeat"] = min(max(float(fields["heartbeat"]), _MIN_HEARTBEAT), _MAX_HEARTBEAT)
        return cls(**fields)


class PipelineDirective(NamedTuple):
    """The fleet's instructions for a rank's pipeline: ``workers``, and the mark to store and read from the next epoch on.

    ``workers`` is ``None`` without a number, ``cache`` without a mark; ``reason`` explains ``cache``, and is empty before the
    decision.
    """

    workers: int | None = None
    cache: int | None = None
    reason: str = ""

    def after(self, document: object) -> PipelineDirective:
        """These instructions, changed by the ``pipeline`` of a gateway's answer; unreadable fields change nothing."""
        if not isinstance(document, Mapping):
            return self
        workers, cache, reason = (document.get(name) for name in self._fields)
        directive = self
        if type(workers) is int and workers > 0:
            directive = directive._replace(workers=workers)
        if isinstance(reason, str) and reason and (cache is None or (type(cache) is int and cache > 0)):
            directive = directive._replace(cache=cache, reason=reason)
        return directive


class DatasetReference(Protocol):
    """The dataset of a job, as the job names it to the gateway."""

    def __call__(self) -> str:
        """Its name or id; resolving it may send requests."""

    def invalidate(self) -> bool:
        """Drop the resolved id, because the gateway does not know it. Returns whether resolving again can help."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A job's description of itself, see `larder.Job`.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    name: str
    dataset: DatasetReference
    batch_size: int
    gpus: int = 1
    ranks: int = 1
    rank: int = 0
    caching: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _JOB_NAME.fullmatch(self.name):
            raise ValueError(f"a job's name is 1 to 128 of A-Z a-z 0-9 . _ -, not {self.name!r}")
        if self.caching not in CACHING:
            raise ValueError(f"caching must be one of {', '.join(CACHING)}, not {self.caching!r}")
        for name, maximum in _MAX_VALUES.items():
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1, maximum))
        object.__setattr__(self, "rank", whole_number("rank", self.rank, 0, self.ranks - 1))

    def document(self) -> dict[str, object]:
        """The body of the registration request."""
        return {
            "job": self.name,
            "dataset": self.dataset(),
            "gpus": self.gpus,
            "batch_size": self.batch_size,
            "ranks": self.ranks,
            "caching": self.caching,
        }


class HeartbeatThread:
    """One rank's connection to the fleet: registers the job, reports progress, receives directives.

    Copies in other processes (forked or unpickled) send no heartbeats.

    Args:
        api: of the gateway, without retries.
        registration: the job's description.
    """

    def __init__(self, api: Api, registration: Registration) -> None:
        self.api = api
        self.registration = registration
        self.timing = Timing()
        self.epoch = 0
        """The epoch that the training loop reads."""
        self.directives: JobDirectives | None = None
        self.finished: EpochReads | None = None
        """The last whole epoch."""
        self.pipeline: dict[str, float | None] | None = None
        """A new report of the rank's pipeline, for the next heartbeat."""
        self.profile: dict[str, object] | None = None
        """A new profile of its stages, for the next heartbeat."""
        self.pipeline_directive = PipelineDirective()
        self.dataset = ""
        """Id of the job's dataset, as the gateway resolved it; empty before registration."""
        self.chores: tuple[Callable[[], object], ...] = ()
        """Called after each heartbeat that was answered. Errors are counted like those of heartbeats."""
        self.stopped = threading.Event()
        self.counts = {"heartbeats": 0, "failed": 0, "registered": 0}
        self.last_error = ""
        """Message of the last failed request of the thread."""
        self._logged: set[str] = set()
        self._due = threading.Event()
        self._joining = threading.Lock()
        self._neighbours = Neighbours(api)
        self._next_refresh = 0.0
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"api": self.api, "registration": self.registration}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
        self._process = 0

    @property
    def own(self) -> bool:
        """Whether this process created the job; false for copies in workers."""
        return self._process == os.getpid()

    @property
    def nodes(self) -> int:
        """Nodes of the fleet that can replace the gateway if it fails."""
        return len(self._neighbours.reached)

    def begin(self, in_flight: int | None = None) -> None:
        """Start the thread unless it runs already, or this is a copy. ``in_flight``: see `larder.training.timing.Observer`."""
        if in_flight is not None:
            self.timing.in_flight = in_flight
        if self._thread is None and self.own and not self.stopped.is_set():
            self._thread = threading.Thread(target=self.run, name="larder-job", daemon=True)
            self._thread.start()

    def step(self, seconds: float, waited: float, counts: Counts, in_flight: int) -> None:
        """Count a mini-batch; see `larder.training.timing.Observer`."""
        self.timing.in_flight = in_flight
        self.timing.add(seconds, waited, *counts.get("", (0, 0)))

    def hurry(self) -> None:
        """Have the next heartbeat, and the chores after it, now."""
        self._due.set()

    def stop(self) -> None:
        """End the thread after the request that it is sending."""
        self.stopped.set()
        self.hurry()

    def run(self) -> None:
        """Send heartbeats until stopped."""
        while True:
            try:
                self.beat()
                self._refresh_neighbours()
                for chore in self.chores:
                    chore()
            except (LarderError, ValueError, *TRANSIENT) as error:
                self._failed(error)
            directives = self.directives
            self._due.wait(_FIRST_HEARTBEAT if directives is None else directives.heartbeat)
            self._due.clear()
            if self.stopped.is_set():
                return

    def beat(self, profile: Mapping[str, object] | None = None) -> PipelineDirective:
        """Register if needed, then send one heartbeat, with this profile or the pending one; returns what its answer alone says
        of the pipeline."""
        self.join()
        try:
            document = self._post("heartbeat", self._report(profile))
        except RequestRefused as error:
            if error.code != "UnknownJob" or self.stopped.is_set():
                raise
            self.register()
            return PipelineDirective()
        self.counts["heartbeats"] += 1
        self._apply(document)
        self.pipeline_directive = self.pipeline_directive.after(document.get("pipeline"))
        return PipelineDirective().after(document.get("pipeline"))

    def join(self) -> JobDirectives:
        """The latest directives; registers the job first if needed. Raises what ``register`` raises.

        Thread and training loop start at the same moment: the lock makes one of them register and the other wait.
        """
        if not self.own:  # after a fork, the lock may be held by a thread that does not exist in this process
            return self.directives or self.register()
        with self._joining:
            return self.directives or self.register()

    def register(self) -> JobDirectives:
        """Register the job, or join it as another rank.

        Raises:
            Busy: a temporary failure, as are the errors of ``TRANSIENT``.
            RequestRefused: the gateway refused the job.
            UnexpectedAnswer: the endpoint is not a Larder gateway.
        """
        try:
            document = self._exchange("/-/v1/jobs", self.registration.document(), _CREATED)
        except UnknownDataset:
            if not self.registration.dataset.invalidate():
                raise
            document = self._exchange("/-/v1/jobs", self.registration.document(), _CREATED)
        self.counts["registered"] += 1
        dataset = document.get("dataset")
        if not self.dataset and isinstance(dataset, str) and _DATASET_ID.fullmatch(dataset):
            self.dataset = dataset
        return self._apply(document)

    def leave(self, seconds: float) -> None:
        """Stop the thread and sign off from the fleet; waits at most ``seconds``, and ignores failures."""
        self.stop()
        if self.directives is None:
            return
        leaving = threading.Thread(target=self._leave, name="larder-sign-off", daemon=True)
        leaving.start()
        leaving.join(seconds)

    def _leave(self) -> None:
        try:
            self._sign_off()
        except (LarderError, ValueError, *TRANSIENT) as error:
            self._failed(error)

    def ask(self, profile: Mapping[str, object]) -> None:
        """Send heartbeats with a profile until the fleet has decided on it, which takes one or two; failures count like those of
        the thread. Training begins anyway after ``_DECIDED_WITHIN`` seconds."""
        until = time.monotonic() + _DECIDED_WITHIN
        try:
            while not self.beat(profile).reason and (left := until - time.monotonic()) > 0:
                if self.stopped.wait(min(left, self.join().heartbeat)):
                    return
        except (LarderError, ValueError, *TRANSIENT) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Count a failure; log a permanent one, such as a refusal, once per kind."""
        self.counts["failed"] += 1
        self.last_error = str(error) or type(error).__name__
        kind = error.code if isinstance(error, RequestRefused) else type(error).__name__
        if isinstance(error, (Busy, *TRANSIENT)) or kind in self._logged:
            return
        self._logged.add(kind)
        _log.warning("heartbeats of job %r fail: %s", self.registration.name, self.last_error)

    def _sign_off(self) -> None:
        if self.registration.ranks > 1:
            self._post("heartbeat", self._report())
            return
        with self.api.exchange("DELETE", self.path(""), expected=frozenset({204})) as response:
            response.read()

    def _apply(self, document: Mapping[str, Any]) -> JobDirectives:
        """Put the directives of an answer into force."""
        try:
            directives = JobDirectives.from_json(document.get("directives"))
        except ValueError as error:
            raise UnexpectedAnswer(self.api.endpoint, 200, str(error)) from error
        self.timing.change(directives.phase)
        self.directives = directives
        return directives

    def _report(self, profile: Mapping[str, object] | None = None) -> dict[str, object]:
        report, self.pipeline = self.pipeline, None
        if profile is None:
            profile, self.profile = self.profile, None
        return {
            **({} if report is None else {"pipeline": report}),
            **({} if profile is None else {"profile": profile}),
            **({} if self.finished is None else {"finished": asdict(self.finished)}),
            "rank": self.registration.rank,
            "epoch": self.epoch,
            "upcoming": [],  # gateways before 0.2 require these two
            "epoch_left": 0,
            "phases": self.timing.as_json(),
        }

    def _post(self, action: str, document: Mapping[str, object]) -> dict[str, Any]:
        return self._exchange(self.path(f"/{action}"), document, frozenset({200}))

    def _refresh_neighbours(self) -> None:
        """Learn which other nodes can replace the gateway."""
        if time.monotonic() < self._next_refresh:
            return
        self._next_refresh = time.monotonic() + REFRESH_INTERVAL
        try:
            for node in self._neighbours.ready():
                self._neighbours.reach(node)
        except (LarderError, ValueError, *TRANSIENT):
            self._next_refresh = time.monotonic() + RETRY_INTERVAL  # not part of a fleet

    def _exchange(self, path: str, document: Mapping[str, object], expected: frozenset[int]) -> dict[str, Any]:
        body = json.dumps(document).encode()
        return self.send("POST", path, headers=_JSON, body=body, expected=expected)

    def send(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Send one request to the gateway, or to another node of its fleet if the gateway is unreachable.

        The arguments and errors are those of `Api.exchange`.
        """
        try:
            return answer_of(self.api, method, path, **request)
        except TRANSIENT:
            for api in self._neighbours.reached.values():
                with suppress(*TRANSIENT):
                    return answer_of(api, method, path, **request)
            raise

    def path(self, suffix: str) -> str:
        """An address of the job."""
        return f"/-/v1/jobs/{quote(self.registration.name, safe='')}{suffix}"


def answer_of(api: Api, method: str, path: str, **request: Any) -> dict[str, Any]:
    """The JSON object of a gateway's answer. Raises what `Api.exchange` raises; expired credentials are looked up again, and
    raise Busy."""
    try:
        with api.exchange(method, path, **request) as response:
            return api.parsed(response.status, response.read())
    except RequestRefused as error:
        if not api.renewable(error):
            raise
        raise Busy(f"the credentials have expired: {error}") from error
