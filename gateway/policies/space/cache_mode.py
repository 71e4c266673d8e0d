"""Decides when to choose where a pipeline caches, and when to choose again.

``autocache.py`` finds the cheapest choice now (Cachew, ATC 2022, section 4.4). A job lives for days: its costs drift, its pool
grows and shrinks, and each change of mode costs an epoch of writes and a search for workers. So a job is decided on once:

    PROFILING ──enough elements of one worker──▶ decided ──three profiles that differ clearly──▶ decided again
        └───────another job has stored these results: SHARED───────┘

- *The first decision* waits until one worker has computed ``elements`` elements. Workers are not scaled until then.
- *Shared results* need no profile: a job whose mark another job has stored begins by reading it (section 4.4: the dispatcher
  looks the fingerprint up first). Of several, the last mark saves most.
- *Another fingerprint* is another pipeline, with a decision of its own. It names the pool of the results.
- *The second decision* needs another mode that saves ``clearly``, by the latest costs, in ``doubts`` profiles in a row. In a mode
  that computes, all costs are those of the profile. In a mode that reads, the time at the end replaces the projection while the
  room stays; the epochs that write do not count, one for each version. Reads by any pipeline of the tenant count: a mark that was
  taken for expensive may turn out to be cheap. A mark that was abandoned keeps its measured reading time until its projection has
  changed by more than ``moved``: otherwise a projection that is too low would bring it back again and again. If no mode saves
  enough, but the room or the costs have changed by more than ``moved``, they become the reference for later ones.
- *Several workers* are each slower, as they compete for cores. The decision is made from the times of one (the paper measures no
  others), so the first profile of another number of workers is only a reference: later ones with that number are compared with
  it, and times change in the decision by the same factor.

An operator's override wins at once, and leaves the profile as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.policies.space.autocache import (
    COMPUTE,
    CacheChoice,
    CacheReason,
    Projection,
    StageProfile,
    choose_mark,
)
from gateway.policies.space.read_model import ReadModel, ReadSums

NEVER = "never"
"""An operator forbids storing results."""
PIN = "pin"
"""An operator has results stored at the cheapest mark, whatever that saves; ``pin:4``: at the mark of stage 4, if there is
one."""


@dataclass(frozen=True, slots=True)
class MarkSettings:
    """When decisions are made."""

    elements: int = 100
    """Elements of one worker that a first decision needs."""
    moved: float = 0.25
    """Share by which room or costs must differ from those of the last decision."""
    clearly: float = 0.1
    """Share of its time that another mode must save."""
    doubts: int = 3
    """Profiles in a row that must differ."""


@dataclass(frozen=True, slots=True)
class PipelineProfile:
    """The costs of a pipeline, as measured by one of a job's ranks.

    Args:
        cache: the mark that is stored or read in this epoch; ``COMPUTE`` if none.
        epoch: number of the epoch.
        measured: elements that the times are means of.
        end: the last stage.
        marks: in order, including those whose results cannot be shared.
        pools: names of the pools of results that can be shared, by the stage of their mark.
        workers: input workers at that time.
        read: results read in that time; ``None`` if no read was timed.
    """

    cache: int
    epoch: int
    measured: int
    end: StageProfile
    marks: tuple[StageProfile, ...] = ()
    pools: Mapping[int, str] = field(default_factory=dict)
    workers: int = 1
    read: ReadSums | None = None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The facts from the gateways.

    Args:
        reads: time of reads from the cache.
        room: bytes that the results may take.
        stored: pools into which a job has stored results, with its decision.
        override: of an operator: ``never``, ``pin``, ``pin:`` and a stage, or empty.
    """

    reads: ReadModel
    room: float
    stored: Mapping[str, CacheDecision] = field(default_factory=dict)
    override: str = ""


@dataclass(frozen=True, slots=True)
class ProfileReference:
    """The first profile of a number of workers in one mode: the reference for later ones with the same number of workers.

    Args:
        workers: their number.
        cache: the mark that was read; ``COMPUTE`` if none.
        seconds: time per element, by stage.
    """

    workers: int
    cache: int
    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """The mark at which a pipeline caches from the epoch after ``epoch`` on, with the figures that decided it.

    Args:
        stage: the mark; ``COMPUTE`` for none.
        reason: why.
        epoch: the epoch in which it was decided.
        room: bytes that the results could take.
        pools: as in the profile.
        costs: profile of the last stage, then of the marks.
        projections: of the modes, ``COMPUTE`` first; none if the decision needed no profile.
        doubts: profiles in a row that differ from this decision's.
        workers: input workers when ``costs`` were measured.
        reference: for the number of workers that the job has had since then.
        left: marks that were read and left, by stage: worker seconds per epoch as projected and as measured.
    """

    stage: int = COMPUTE
    reason: CacheReason = CacheReason.PROFILING
    epoch: int = 0
    room: float = 0.0
    pools: Mapping[int, str] = field(default_factory=dict)
    costs: tuple[StageProfile, ...] = ()
    projections: tuple[Projection, ...] = ()
    doubts: int = 0
    workers: int = 1
    reference: ProfileReference | None = None
    left: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether the decision stays until something changes."""
        return self.reason is not CacheReason.PROFILING

    def mode(self, cache: int, epoch: int) -> str:
        """A rank's mode in ``epoch`` with the mark ``cache`` in force: ``compute``, ``put`` or ``get``."""
        if cache == COMPUTE:
            return "compute"
        written = self.epoch + self.versions
        writes = cache == self.stage and self.reason is not CacheReason.SHARED and epoch <= written
        return "put" if writes else "get"

    @property
    def versions(self) -> int:
        """Epochs that compute results before all are stored; 1 if it is not known."""
        return next((cost.versions for cost in self.costs[1:] if cost.stage == self.stage), 1)


def pinned_mark(override: str) -> int | None:
    """The stage of the mark that an operator named; ``None`` without one."""
    mode, _, stage = override.partition(":")
    return int(stage) if mode == PIN and stage.isdecimal() else None


def undecided(now: CacheDecision | None, profile: PipelineProfile) -> bool:
    """Whether the mark of this pipeline is chosen for the first time, so that results of other jobs count."""
    same = now is not None and now.pools == profile.pools and now.reason is not CacheReason.OVERRIDE
    return now is None or not same or not now.final


def decided(
    now: CacheDecision | None, profile: PipelineProfile, facts: CacheFacts, settings: MarkSettings
) -> CacheDecision:
    """The decision after a profile; the same object if nothing changes."""
    if facts.override:
        return _overridden(now, profile, facts)
    if now is None or undecided(now, profile):
        return _first(now, profile, facts, settings)
    now = _with_reference(now, profile, settings)
    again = _again(now, profile, facts, settings)
    if again.stage == now.stage and not _room_moved(now, facts, settings) and not _costs_moved(now, profile, settings):
        return replace(now, doubts=0) if now.doubts else now
    return again if now.doubts + 1 >= settings.doubts else replace(now, doubts=now.doubts + 1)


def _shareable(profile: PipelineProfile) -> list[StageProfile]:
    return [mark for mark in profile.marks if mark.stage in profile.pools]


def _overridden(now: CacheDecision | None, profile: PipelineProfile, facts: CacheFacts) -> CacheDecision:
    choice = _choice((profile.end, *_shareable(profile)), facts)
    marked = [projection for projection in choice.projections if projection.stage != COMPUTE]
    stage, named = COMPUTE, pinned_mark(facts.override)
    if named is not None and named in profile.pools:
        stage = named
    elif facts.override != NEVER:
        last = max((mark.stage for mark in _shareable(profile)), default=COMPUTE)
        stage = min(marked, key=lambda projection: (projection.whole, projection.stage)).stage if marked else last
    if now is not None and now.reason is CacheReason.OVERRIDE and now.pools == profile.pools:
        pinned = facts.override != NEVER and named not in profile.pools and now.stage != COMPUTE
        if pinned or now.stage == stage:
            return now
    return _made(stage, CacheReason.OVERRIDE, profile, facts, choice)


def _first(
    now: CacheDecision | None, profile: PipelineProfile, facts: CacheFacts, settings: MarkSettings
) -> CacheDecision:
    stored = [stage for stage, pool in profile.pools.items() if pool in facts.stored]
    if stored:
        return _shared(max(stored), profile, facts)
    if now is None and profile.cache in profile.pools:
        # The decision was lost when Redis was emptied: profiling again would compute another epoch.
        return _shared(profile.cache, profile, facts)
    marks = _shareable(profile)
    if marks and (profile.measured < settings.elements or profile.cache != COMPUTE):
        waiting = CacheDecision(pools=profile.pools)
        return now if now == waiting else waiting
    choice = _choice((profile.end, *marks), facts)
    return _made(choice.stage, choice.reason, profile, facts, choice)


def _shared(stage: int, profile: PipelineProfile, facts: CacheFacts) -> CacheDecision:
    """Read results that another job, or this one, has stored; known measurements give the savings."""
    other = facts.stored.get(profile.pools[stage])
    return replace(
        other if other is not None and other.stage == stage else CacheDecision(),
        stage=stage,
        reason=CacheReason.SHARED,
        epoch=profile.epoch,
        room=facts.room,
        pools=profile.pools,
        doubts=0,
    )


def _again(now: CacheDecision, profile: PipelineProfile, facts: CacheFacts, settings: MarkSettings) -> CacheDecision:
    """Decide again from the latest costs; keep the mode unless another one clearly saves more."""
    costs = _costs(now, profile, settings)
    if not costs:
        return replace(now, doubts=0, room=facts.room)
    choice = _choice(costs, facts)
    projected = {projection.stage: projection.seconds for projection in choice.projections}
    left = {
        stage: (expected, measured)
        for stage, (expected, measured) in now.left.items()
        if stage in projected and not _differ(projected[stage], expected, settings.moved)
    }
    seconds = projected | {stage: measured for stage, (_, measured) in left.items()}
    if _reads(now, profile) and not _room_moved(now, facts, settings):
        seconds[now.stage] = _reading_seconds(now, profile, projected[now.stage])
        left[now.stage] = projected[now.stage], seconds[now.stage]
    measured = tuple(replace(projection, seconds=seconds[projection.stage]) for projection in choice.projections)
    best = min(measured, key=lambda projection: (projection.whole, projection.stage), default=None)
    present = seconds.get(now.stage)
    if best is None or present is None or best.whole >= present * (1 - settings.clearly):
        return replace(
            now, room=facts.room, costs=costs, projections=measured, doubts=0, reference=_reference(now, profile)
        )
    reason = choice.reason if best.stage == choice.stage else CacheReason.FASTEST
    if best.stage == COMPUTE and reason is CacheReason.FASTEST:
        reason = CacheReason.NOTHING_TO_GAIN
    return replace(
        now,
        stage=best.stage,
        reason=reason,
        epoch=profile.epoch,
        room=facts.room,
        costs=costs,
        projections=measured,
        doubts=0,
        reference=None,
        left=left,
    )


def _choice(costs: Sequence[StageProfile], facts: CacheFacts) -> CacheChoice:
    return choose_mark(costs[0], costs[1:], facts.reads, facts.room)


def _made(
    stage: int, reason: CacheReason, profile: PipelineProfile, facts: CacheFacts, choice: CacheChoice
) -> CacheDecision:
    costs = (profile.end, *_shareable(profile)) if profile.cache == COMPUTE and choice.projections else ()
    projections = choice.projections if costs else ()
    pools = profile.pools
    return CacheDecision(stage, reason, profile.epoch, facts.room, pools, costs, projections, workers=profile.workers)


def _reads(now: CacheDecision, profile: PipelineProfile) -> bool:
    """Whether a profile is of an epoch that reads the decision's results; another job may not have stored all versions yet."""
    stored = now.versions == 1 or profile.epoch >= now.epoch + now.versions
    in_force = now.stage != COMPUTE and profile.cache == now.stage
    return in_force and stored and now.mode(profile.cache, profile.epoch) == "get"


def _room_moved(now: CacheDecision, facts: CacheFacts, settings: MarkSettings) -> bool:
    """Whether the room has changed enough that more or fewer of any mark's results fit."""
    sizes = [cost.size for cost in now.costs[1:]]
    before, after = (sum(min(room, size) for size in sizes) for room in (now.room, facts.room))
    return abs(after - before) > settings.moved * max(before, after)


def _computes(profile: PipelineProfile, settings: MarkSettings) -> bool:
    """Whether a profile has the costs of all stages."""
    return profile.cache == COMPUTE and profile.measured >= settings.elements


def _reference(now: CacheDecision, profile: PipelineProfile) -> ProfileReference | None:
    """The reference for later profiles with the same number of workers; ``None`` if the decision's costs are the reference."""
    if profile.workers == now.workers:
        return None
    seconds = {point.stage: point.seconds for point in (profile.end, *profile.marks)}
    return ProfileReference(profile.workers, profile.cache, seconds)


def _with_reference(now: CacheDecision, profile: PipelineProfile, settings: MarkSettings) -> CacheDecision:
    """The decision, with this profile as reference if its workers or its mode are new."""
    if profile.workers == now.workers or not now.costs:
        return now
    if not _reads(now, profile) and not _computes(profile, settings):
        return now
    known = now.reference
    if known is not None and (known.workers, known.cache) == (profile.workers, profile.cache):
        return now
    return replace(now, reference=_reference(now, profile))


def _since_reference(now: CacheDecision, point: StageProfile) -> float:
    """The factor by which the time of a stage has changed since the reference."""
    before = 0.0 if now.reference is None else now.reference.seconds.get(point.stage, 0.0)
    return point.seconds / before if before > 0 else 1.0


def _costs(now: CacheDecision, profile: PipelineProfile, settings: MarkSettings) -> tuple[StageProfile, ...]:
    """The stages' costs by this profile, scaled to the number of workers that the decision was made from."""
    if not _computes(profile, settings):
        return now.costs
    points = (profile.end, *_shareable(profile))
    if profile.workers == now.workers:
        return points
    known = {cost.stage: cost.seconds for cost in now.costs}
    return tuple(
        replace(point, seconds=known[point.stage] * _since_reference(now, point))
        for point in points
        if point.stage in known
    )


def _reading_seconds(now: CacheDecision, profile: PipelineProfile, projected: float) -> float:
    """Seconds of a reading epoch by this profile, scaled to the number of workers that the decision was made from."""
    if profile.workers == now.workers:
        return profile.end.elements * profile.end.seconds
    return projected * _since_reference(now, profile.end)


def _costs_moved(now: CacheDecision, profile: PipelineProfile, settings: MarkSettings) -> bool:
    if _reads(now, profile):
        projected = next((projection.seconds for projection in now.projections if projection.stage == now.stage), None)
        return projected is not None and _differ(_reading_seconds(now, profile, projected), projected, settings.moved)
    known = {cost.stage: cost.seconds for cost in now.costs}
    current = {cost.stage: cost.seconds for cost in _costs(now, profile, settings)}
    return any(
        stage in current and _differ(current[stage], seconds, settings.moved) for stage, seconds in known.items()
    )


def _differ(seconds: float, other: float, share: float) -> bool:
    return abs(seconds - other) > share * max(seconds, other)
