"""The rotation of a dataset of which two chunks are held: what is loaded next, and when a chunk leaves.

Quiver, section 5.1 (co-ordinated eviction). While jobs use one chunk the next is loaded; when that one is complete

    loading ──loaded──▶ newest ──a newer one is complete──▶ marked ──no reference, or force──▶ gone

the older is *marked*, stays for the jobs that are still in it, and leaves when none refers to it any more, which is when the next
load may start. So at most two chunks, complete or not, take space at any time. What the paper leaves open, and what is done here:

- A job *refers* to the chunk that it uses, and to the one after it, across the end of an epoch too. What has been loaded for the
  slower half of the jobs is not thrown away because the faster half has just left it. Looking ahead by as much as is held also
  rules out running in circles: whatever leaves is needed later, by every job, than what is loaded in its place.
- Either chunk may leave, the older first. If jobs jump, it can be the newer one that nobody wants any more.
- Nothing leaves unless something else is wanted: an unused chunk in an otherwise empty space harms nobody. So with no jobs
  everything stays, but a load that nobody waits for is given up.
- *Force*: ``force_after`` seconds after the first job has finished a chunk, jobs that still refer to it lose it, if others wait.
  Only jobs that are there now count as having finished it: who begins on a chunk is no laggard of those who are gone.
  Such a job is much slower than its peers, so it waits for its GPU and not for its data (section 5.1). It has no say in what is
  held until it is past what it lost, or it would hold the others up at every single chunk; and what it lost is not loaded again
  for it in this epoch, or it would take the space back with every turn. When all have lost something, or one is left alone, that
  is forgotten.
- A chunk that is still being loaded falls under the same rules: what everyone has passed meanwhile is given up, so that an origin
  which cannot deliver some items does not stop the rotation.
- At the end of its epoch a job names the first chunks of the order that it would take in the next. While another job is in the
  middle of an epoch it is given that one's order instead (``chunk_order``), so what it named is not what it will need;
  what follows its last chunk in the other's order is, if that is known.
- *The next load* is what most jobs need next: the first chunk in a job's order that is not held; at a tie the one that is needed
  sooner, then the lower number.

New jobs begin where the front runners are: on the newest complete chunk that a job uses. What has been loaded ahead of them is
not for new jobs: they would stay one chunk apart from the others for good, whose chunk then keeps the next from being loaded,
and both would read the origin. Only when the front runners are more than half through theirs is the next one nearer, if it is
complete: half of the time that the first of them took for the chunk before. If nobody uses a complete chunk, new jobs begin on
the newest complete one, or on the one being loaded when none is complete, or when all jobs have gone on to it because loading is
slower than they are: there they share its misses, while a chunk that everyone has finished is soon taken away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gateway.policies.space.orders import ChunkRotation

ENDING = 2
"""A job that has at most so many chunks left is at the end of its epoch."""


class ChunkReason(StrEnum):
    """An event of a chunk, with its reason."""

    STARTED = "started"
    """Nodes begin to load the chunk."""
    LOADED = "loaded"
    """Every node has its part of the chunk."""
    MARKED = "marked"
    """A newer chunk is complete; this one is dropped once no job needs it."""
    UNREFERENCED = "unreferenced"
    """The chunk was dropped: no job uses it, or is about to."""
    FORCED = "forced"
    """The chunk was dropped although a job uses it, because others finished it long ago."""


@dataclass(frozen=True, slots=True)
class ChunkEvent:
    """One thing that happened to one chunk; ``jobs`` lost it, if it was forced out."""

    reason: ChunkReason
    chunk: int
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobView:
    """The rotation's view of a job.

    ``upcoming``: the chunk in use first, then the rest of its epoch in order, then the first ones of the next; the first
    ``epoch_left`` belong to this epoch.
    """

    name: str
    upcoming: tuple[int, ...]
    epoch_left: int

    @property
    def current(self) -> int:
        """The chunk in use, -1 for none."""
        return self.upcoming[0] if self.upcoming else -1

    @property
    def this_epoch(self) -> tuple[int, ...]:
        """The chunk in use and those that the job needs before its epoch ends."""
        return self.upcoming[: max(1, self.epoch_left)]


@dataclass(frozen=True, slots=True)
class RotationMemory:
    """The rotation's memory between steps.

    ``using``: the chunk that each job was in. ``finished``: who of the jobs that are there has finished a held chunk, and when in
    seconds, unless that job needs it again soon.
    ``lost``: the chunks that a job was deprived of by force, until it is past them.
    ``since``: when each job began on its chunk, in seconds. ``begun``: when the first job began on a chunk in use, and how many
    seconds it had spent in the one before, 0 if that is unknown.
    """

    using: Mapping[str, int] = field(default_factory=dict)
    finished: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    lost: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    since: Mapping[str, float] = field(default_factory=dict)
    begun: Mapping[int, tuple[float, float]] = field(default_factory=dict)


def rotate(
    chunks: ChunkRotation,
    memory: RotationMemory,
    jobs: Sequence[JobView],
    *,
    loaded: bool,
    units: int,
    now: float,
    force_after: float,
) -> tuple[ChunkRotation, RotationMemory, tuple[ChunkEvent, ...]]:
    """One step of the rotation.

    Args:
        chunks: what is held now.
        memory: as returned with ``chunks``.
        jobs: all that use the dataset through the cache; one that is missing is gone and refers to nothing.
        loaded: every node has its part of ``chunks.loading``.
        units: how many chunks there are; numbers that are none are ignored.
        now: seconds of a clock that all leaders share.
        force_after: seconds after which a chunk that some job has finished may be taken from the others.
    """
    views = _following([_sane(job, units) for job in sorted(jobs, key=lambda one: one.name)], units)
    turn = _Turn(_within(chunks, units), _remember(memory, views, chunks.held, now), views)
    turn.complete(loaded)
    turn.let_go(now, force_after)
    turn.start()
    return turn.aimed(now), turn.memory, tuple(turn.events)


def _sane(job: JobView, units: int) -> JobView:
    upcoming = tuple(chunk for chunk in job.upcoming if 0 <= chunk < units)
    return job if len(upcoming) == len(job.upcoming) else replace(job, upcoming=upcoming)


def _following(jobs: Sequence[JobView], units: int) -> list[JobView]:
    """The jobs' future: those at the end of an epoch join those in the middle of one."""
    middle = [job.this_epoch for job in jobs if ENDING < job.epoch_left < units]
    after: dict[int, tuple[int, ...]] = {}
    for order in middle:
        for place, chunk in enumerate(order):
            after[chunk] = max(after.get(chunk, ()), order[place + 1 : place + 3], key=len)
    return [_going_on(job, after) if middle and job.epoch_left <= ENDING else job for job in jobs]


def _going_on(job: JobView, after: Mapping[int, tuple[int, ...]]) -> JobView:
    left = job.upcoming[: job.epoch_left]
    return replace(job, upcoming=(*left, *after.get(left[-1], ())) if left else ())


def _within(chunks: ChunkRotation, units: int) -> ChunkRotation:
    """At most two existing chunks, whatever another version's plan contains."""
    complete = tuple(chunk for chunk in dict.fromkeys(chunks.complete) if 0 <= chunk < units)[-2:]
    full = len(complete) == 2 or chunks.loading in complete or chunks.loading >= units
    return _named(complete, -1 if full else chunks.loading)


def _named(complete: tuple[int, ...], loading: int) -> ChunkRotation:
    return ChunkRotation(complete, loading, active=complete[-1] if complete else loading, marked=complete[:-1])


def _remember(memory: RotationMemory, jobs: Sequence[JobView], held: Collection[int], now: float) -> RotationMemory:
    """Record the jobs that left a chunk since the last step. A clock that is set back cannot prolong the wait for a chunk."""
    using = {job.name: job.current for job in jobs if job.current >= 0}
    since = {
        name: min(memory.since.get(name, now), now) if memory.using.get(name) == chunk else now
        for name, chunk in using.items()
    }
    finished = _finished(memory, using, {job.name: job.upcoming[:2] for job in jobs}, held, now)
    lost = _still_lost(memory.lost, jobs, held)
    return RotationMemory(using, finished, lost, since, _begun(memory, using, now))


def _finished(
    memory: RotationMemory,
    using: Mapping[str, int],
    soon: Mapping[str, Collection[int]],
    held: Collection[int],
    now: float,
) -> dict[int, dict[str, float]]:
    """The held chunks that each present job has finished, and when."""
    found: dict[int, dict[str, float]] = {}
    for chunk, by in memory.finished.items():
        for name, at in by.items():
            if chunk in held and name in using and chunk not in soon[name]:
                found.setdefault(chunk, {})[name] = min(at, now)
    for name, before in memory.using.items():
        if before in held and name in using and before not in soon[name]:
            found.setdefault(before, {}).setdefault(name, now)
    return found


def _begun(memory: RotationMemory, using: Mapping[str, int], now: float) -> dict[int, tuple[float, float]]:
    """When the first job began on each chunk in use, and what it had taken for the one before."""
    used = set(using.values())
    found = {chunk: (min(at, now), took) for chunk, (at, took) in memory.begun.items() if chunk in used}
    for name, chunk in using.items():
        at, took = found.get(chunk, (now, 0.0))
        if not took and memory.using.get(name, chunk) != chunk:
            took = max(0.0, now - memory.since.get(name, now))
        found[chunk] = (at, took)
    return found


def _still_lost(
    lost: Mapping[str, tuple[int, ...]], jobs: Sequence[JobView], held: Collection[int]
) -> dict[str, tuple[int, ...]]:
    found = {}
    for job in jobs:
        left = tuple(chunk for chunk in lost.get(job.name, ()) if chunk in job.this_epoch and chunk not in held)
        if left:
            found[job.name] = left
    return found if any(job.current not in found.get(job.name, ()) for job in jobs) and len(jobs) > 1 else {}


class _Turn:
    """The state of one step in progress."""

    def __init__(self, chunks: ChunkRotation, memory: RotationMemory, jobs: Sequence[JobView]) -> None:
        self.chunks = chunks
        self.memory = memory
        self._jobs = jobs
        self.events: list[ChunkEvent] = []

    def complete(self, loaded: bool) -> None:
        """Complete the load."""
        chunk = self.chunks.loading
        if not loaded or chunk < 0:
            return
        self.events.append(ChunkEvent(ChunkReason.LOADED, chunk))
        self.events.extend(ChunkEvent(ChunkReason.MARKED, older) for older in self.chunks.complete)
        self.chunks = _named((*self.chunks.complete, chunk), -1)

    def let_go(self, now: float, force_after: float) -> None:
        """Make room for a wanted chunk if there is none; cancel a load that no job needs."""
        loading, complete = self.chunks.loading, self.chunks.complete
        overdue = [chunk for chunk, by in self.memory.finished.items() if now - min(by.values()) >= force_after]
        in_the_way = [chunk for chunk in self.chunks.held if chunk in overdue and self._holds_others_up(chunk)]
        if loading >= 0:
            if all(loading not in job.upcoming for job in self._jobs):
                self._drop(ChunkEvent(ChunkReason.UNREFERENCED, loading))
            elif loading in in_the_way:
                self._force(loading)
        elif len(complete) == 2 and self._next() >= 0:
            referred = {chunk for job in self._jobs for chunk in self._needs(job)[:2]}
            unused = [chunk for chunk in complete if chunk not in referred]
            if unused:
                self._drop(ChunkEvent(ChunkReason.UNREFERENCED, unused[0]))
            elif in_the_way:
                self._force(in_the_way[0])

    def start(self) -> None:
        """Load what is wanted next, if there is room."""
        if self.chunks.loading >= 0 or len(self.chunks.complete) == 2:
            return
        chunk = self._next()
        if chunk >= 0:
            self.chunks = _named(self.chunks.complete, chunk)
            self.events.append(ChunkEvent(ChunkReason.STARTED, chunk))

    def aimed(self, now: float) -> ChunkRotation:
        """The chunks, with the active one where a job that begins now is in the company of others."""
        used = {job.current for job in self._jobs if job.current >= 0}
        in_company = [chunk for chunk in self.chunks.complete if chunk in used]
        if in_company:
            return replace(self.chunks, active=self._nearest(in_company[-1], now))
        return replace(self.chunks, active=self.chunks.loading) if self.chunks.loading in used else self.chunks

    def _nearest(self, front: int, now: float) -> int:
        """The front runners' chunk, or their next one, if it is complete and they are nearer to it."""
        began, took = self.memory.begun[front]
        if not 0 < took < 2 * (now - began):
            return front
        following = {job.upcoming[1] for job in self._jobs if job.current == front and len(job.upcoming) > 1}
        return next((chunk for chunk in self.chunks.complete if chunk in following), front)

    def _holds_others_up(self, chunk: int) -> bool:
        """Whether a job that does not refer to the chunk wants another that is not held."""
        return any(chunk not in self._needs(job)[:2] and self._wanted(job) >= 0 for job in self._jobs)

    def _force(self, chunk: int) -> None:
        losers = [job.name for job in self._jobs if chunk in self._needs(job)[:2]]
        lost = {**self.memory.lost, **{name: (*self.memory.lost.get(name, ()), chunk) for name in losers}}
        self.memory = replace(self.memory, lost=lost)
        self._drop(ChunkEvent(ChunkReason.FORCED, chunk, tuple(losers)))

    def _drop(self, event: ChunkEvent) -> None:
        gone = event.chunk
        complete = tuple(chunk for chunk in self.chunks.complete if chunk != gone)
        self.chunks = _named(complete, -1 if self.chunks.loading == gone else self.chunks.loading)
        finished = {chunk: by for chunk, by in self.memory.finished.items() if chunk != gone}
        self.memory = replace(self.memory, finished=finished)
        self.events.append(event)

    def _needs(self, job: JobView) -> tuple[int, ...]:
        """The chunks held and loaded for a job, in its order."""
        lost = self.memory.lost.get(job.name, ())
        if job.current in lost:
            return ()
        return tuple(chunk for chunk in dict.fromkeys(job.upcoming) if chunk not in lost)

    def _wanted(self, job: JobView) -> int:
        """The first chunk that a job needs and that is not held, -1 for none."""
        return next((chunk for chunk in self._needs(job) if chunk not in self.chunks.held), -1)

    def _next(self) -> int:
        """The chunk to load next, -1 for none."""
        votes: dict[int, list[int]] = {}
        for job in self._jobs:
            wanted = self._wanted(job)
            if wanted >= 0:
                votes.setdefault(wanted, []).append(job.upcoming.index(wanted))
        return min(votes, key=lambda chunk: (-len(votes[chunk]), min(votes[chunk]), chunk), default=-1)
