"""The trainer's view of a pipeline's workers: their number, the splits of each, and the dead ones.

It has no thread. It manages workers whenever the training loop requests an element; between two batches they work through the
splits that they have.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from time import monotonic

from larder.base.errors import LarderWarning, PipelineError
from larder.pipelines.splits import Released, Split, SplitLedger
from larder.pipelines.stages import Counts, ElementFailure, RemoteTraceback, StageCounts, summed
from larder.pipelines.workers import (
    Broken,
    Ended,
    Event,
    Heartbeat,
    Notice,
    Recalled,
    SplitPart,
    Started,
    WorkerHost,
)

HEARTBEAT = 5.0
"""Seconds between two heartbeats of a worker (Cachew, ATC 2022, section 4.1)."""
MISSED = 2
"""Heartbeats that a worker may miss (section 4.6); one more, and it counts as dead."""
STARTUP = 300.0
"""Seconds that a worker may take to start: importing a large framework from a shared file system can take a minute."""
MOST_FAILED_STARTS = 3
"""Workers that may end before they are ready, with none becoming ready, before the pipeline gives up."""
SPLITS_EACH = 2
"""Splits per worker: one to compute, and one whose items it reads at the same time."""
SPLIT_SECONDS = 0.2
"""Seconds of work in a split: long enough to make its messages cheap, short enough to distribute the last splits of an epoch."""
MOST_ELEMENTS = 256
"""The most elements of a split."""
RELEASED = 16
"""Elements delivered before the workers are managed again."""
FIRST_ELEMENTS = 4
"""Elements of a split while their cost is unknown."""


@dataclass(frozen=True)
class CrewLimits:
    """Limits of the queue between workers and trainer.

    Args:
        elements: elements that may be computed ahead.
        bytes: total size of elements that may wait for the trainer; splits that workers already have may exceed it.
        timeout: seconds after which a function that has not returned counts as hanging.
    """

    elements: int
    bytes: int
    timeout: float


@dataclass
class _Member:
    heard: float
    ready: bool = False
    retiring: bool = False


class Crew:
    """Workers that compute epoch after epoch.

    Args:
        host: runs the workers.
        workers: number of workers to begin with.
        limits: of the queue.
        clock: monotonic seconds.
    """

    def __init__(
        self, host: WorkerHost, workers: int, limits: CrewLimits, clock: Callable[[], float] = monotonic
    ) -> None:
        self._host = host
        self._limits = limits
        self._clock = clock
        self._members: dict[int, _Member] = {}
        self._target = workers
        self._number = 0
        self._failed_starts = 0
        self._splits = count()  # a late part of an interrupted epoch must not be taken for a later split's
        self._waiting_bytes = 0
        self._ledger: SplitLedger | None = None
        self._warned: set[str] = set()
        self.counts: Counts = {}
        self.deaths = 0

    @property
    def workers(self) -> int:
        """Number of workers, not counting those that are about to end."""
        return sum(not member.retiring for member in self._members.values())

    @property
    def remote(self) -> int:
        """The ``workers`` that run on a cluster."""
        return sum(self._host.remote(number) for number, member in self._members.items() if not member.retiring)

    @property
    def working(self) -> int:
        """Number of workers if all are ready and none is about to end, else 0."""
        steady = all(member.ready and not member.retiring for member in self._members.values())
        return len(self._members) if steady and len(self._members) == self._target else 0

    @property
    def ready(self) -> int:
        """Elements of the current epoch that were computed and not delivered yet."""
        return 0 if self._ledger is None else self._ledger.ready

    @property
    def ahead(self) -> int:
        """``ready`` plus the elements assigned to workers."""
        return 0 if self._ledger is None else self._ledger.ready + self._ledger.owed

    def scale(self, workers: int) -> None:
        """Change the number of workers. Surplus workers return their splits, then end."""
        self._target = workers

    def close(self) -> None:
        """End all workers."""
        self._members.clear()
        self._host.close()

    def elements(self, open_ledger: Callable[[Iterator[int]], SplitLedger]) -> Iterator[Released]:
        """The elements of an epoch, in order.

        Args:
            open_ledger: makes the ledger of the epoch; its argument gives the numbers of splits.

        Raises:
            PipelineError: worker processes cannot start.
            LarderError: a worker cannot read items.
        """
        ledger = self._ledger = open_ledger(self._splits)
        self._waiting_bytes = 0
        leaving: list[Released] = []
        while not ledger.finished:
            self._adjust()
            self._fill(ledger)
            # Wait at most a heartbeat, to notice a dead worker.
            self._listen(ledger, 0.0 if leaving else HEARTBEAT)
            self._bury_silent(ledger)
            # In pieces: workers must not wait until all arrived elements are used.
            leaving = list(islice(ledger.release(), RELEASED))
            for released in leaving:
                if isinstance(released.value, memoryview):
                    self._waiting_bytes -= released.value.nbytes
                yield released

    def _adjust(self) -> None:
        """Start and retire workers until their number is the wanted one."""
        active = [number for number, member in self._members.items() if not member.retiring]
        active.sort(key=self._host.remote)
        for _ in range(self._target - len(active)):
            number, self._number = self._number, self._number + 1
            # In this order: after Ctrl-C between the two, nothing waits for a worker that does not exist.
            self._host.start(number)
            self._members[number] = _Member(self._clock())
        for number in active[self._target :]:
            self._retire(number, self._members[number])

    def _retire(self, number: int, member: _Member) -> None:
        self._host.retire(number)
        member.retiring = True

    def _fill(self, ledger: SplitLedger) -> None:
        """Assign splits to every worker, those with the least work first, as long as the queue has room."""
        size = self._split_size()
        for held in range(SPLITS_EACH):
            for number, member in self._members.items():
                if not member.ready or member.retiring or len(ledger.holds(number)) > held:
                    continue
                split: Split | None = ledger.assign(number, size, only_lost=not self._room(ledger, size))
                if split is not None:
                    self._host.assign(number, split)

    def _room(self, ledger: SplitLedger, size: int) -> bool:
        ahead = ledger.ready + ledger.owed
        limit = max(self._limits.elements, SPLITS_EACH * size * self._target)
        return ahead < limit and self._waiting_bytes < self._limits.bytes

    def _split_size(self) -> int:
        last = max(self.counts, default=0)
        known = self.counts.get(last, StageCounts())
        if known.elements < FIRST_ELEMENTS:
            return FIRST_ELEMENTS
        return max(1, min(MOST_ELEMENTS, int(SPLIT_SECONDS * known.elements / max(known.seconds, 1e-9))))

    def _listen(self, ledger: SplitLedger, seconds: float) -> None:
        """Handle pending events. A worker's error is raised last, because the next epoch needs the other events.

        After Ctrl-C, and after a warning that is raised as an error, it handles the remaining events, starting with the
        interrupted one.
        """
        broken = None
        events = self._host.poll(seconds)
        while events:
            worker, event = events[0]
            if isinstance(event, Broken):
                broken = event
            else:
                self._handle(ledger, worker, event)
            del events[0]
        if broken is not None:
            raise broken.error from RemoteTraceback(broken.trace) if broken.trace else broken.error.__cause__

    def _handle(self, ledger: SplitLedger, worker: int, event: Event) -> None:
        member = self._members.get(worker)
        if member is None:
            return
        member.heard = self._clock()
        if isinstance(event, Started):
            member.ready = True
            self._failed_starts = 0
        elif isinstance(event, SplitPart):
            self.counts = summed(self.counts, event.counts)
            if ledger.record(worker, event.split, event.first, event.values):
                self._waiting_bytes += sum(value.nbytes for value in event.values if isinstance(value, memoryview))
        elif isinstance(event, Heartbeat):
            self._refuse_hanging(ledger, worker, event)
        elif isinstance(event, Notice):
            self._warn(event.text)
        elif isinstance(event, Recalled):
            self._retire(worker, member)
        elif isinstance(event, Ended):
            self._bury(ledger, worker, member, event)

    def _warn(self, text: str) -> None:
        """Warn of a worker's notice, once for all workers."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, LarderWarning, stacklevel=2)

    def _refuse_hanging(self, ledger: SplitLedger, worker: int, beat: Heartbeat) -> None:
        if beat.seconds > self._limits.timeout:
            detail = f"it has not returned for {beat.seconds:.0f} s, longer than timeout={self._limits.timeout:g}"
            ledger.fail(beat.split, beat.place, ElementFailure(beat.stage, detail))
            self._host.kill(worker)

    def _bury_silent(self, ledger: SplitLedger) -> None:
        """Treat workers that missed their heartbeats as dead: they may be stopped, or on a lost machine.

        A worker that has not begun may wait for room on a cluster while others work.
        """
        now = self._clock()
        at_work = any(member.ready for member in self._members.values())
        for number, member in list(self._members.items()):
            silent = now - member.heard
            if silent > (MISSED + 1) * HEARTBEAT if member.ready else silent > STARTUP and not at_work:
                self._host.kill(number)
                self._bury(ledger, number, member, Ended(f"no sign of life for {silent:.0f} s"))

    def _bury(self, ledger: SplitLedger, worker: int, member: _Member, ended: Ended) -> None:
        del self._members[worker]
        owed = bool(ledger.holds(worker))
        ledger.lost(worker)
        if not member.ready:
            self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS:
                raise PipelineError(
                    f"{self._failed_starts} workers ended before they began, the last: {ended.reason}. {self._host.advice}"
                )
        elif owed or not member.retiring:
            self.deaths += 1
