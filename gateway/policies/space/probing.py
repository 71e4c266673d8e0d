"""Probing: a job's benefit of the cache, measured by refusing it hits for a while.

Quiver, sections 4.5 and 5.3: a new job is refused all hits for about 100 mini-batches, then reads as usual, and the ratio of its
times per mini-batch, t_miss / t_hit, is its benefit. A job that gains nothing leaves the cache. Since the load on the origin
changes, this is repeated from time to time.

    WAITING ──its turn──▶ REFUSING ──batches──▶ MEASURING ──batches with hits──▶ RESTING
                              ▲                     ▲                              │
                              └──── due, its turn ──┴── due, without the cache ────┘

Jobs report totals that only grow, one set for each phase of the directives (``Phase``); what counts is how much they grew from
one report to the next. Where the paper is silent:

- *The first mini-batches of a phase do not count*: the job's pipeline still holds data that was read under the other rule. Nor
  does the report in which they end.
- *Mini-batches with few hits say nothing about t_hit*: of a dataset that is just being loaded, only those reports count in which
  at least half of the items were hits. If these do not come together within ``patience`` times the usual number, the job rests,
  and is measured whenever the hits do come; its t_miss is not asked for again. Such a job is taken for one that gains nothing
  only if it hardly waited for data even while it was refused hits: no cache can bring more than t_miss / (t_miss - waited).
- *Again*: every half hour; sooner if the time per mini-batch has changed by a quarter since, but each time that this happens only
  after twice the time, so that a restless job is not refused hits all the time.
- *A job without the cache* is probed the other way round: its time as it rests is t_miss, and it gets hits for a while.
- *While the dataset's mode changes*, from two chunks to all of it for example, no time is measured across the change.
- *Turns*: one job of a dataset is refused hits at a time (the caller gives the turns), so that probing never takes the cache from
  a whole multi-job. One that is refused hits and takes no step at all gives its turn away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import JobOrder, Phase

LEAST_BENEFIT = 1.05
"""t_miss / t_hit below which a job gains nothing worth its space."""
MOST_BENEFIT = 1000.0
"""The largest benefit. A larger ratio means that the job's clock was too coarse."""
LEAST_HITS = 0.5
"""Share of hits from which a report tells the time with the cache."""
SKIPPED = 0.2
"""Share of ``batches`` by which each phase begins before it counts."""
ENOUGH = 0.2
"""Share of ``batches`` that must do when patience is at its end."""


@dataclass(frozen=True, slots=True)
class PhaseTotals:
    """A job's totals of one phase; ``seconds`` is all time, ``waited`` the part of it without data."""

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    items: int = 0
    hits: int = 0


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Parameters of probing jobs; times in seconds."""

    batches: int = 100
    """Mini-batches that each side is measured for; 0 switches probing off."""
    patience: int = 20
    """Limit of the wait for batches with hits, in multiples of ``batches``."""
    every: float = 1800.0
    """From one measurement to the next."""
    soonest: float = 60.0
    """The same when the job's time per mini-batch has drifted: doubled each time until it is ``every``."""
    drift: float = 0.25
    """Share by which the time per mini-batch must change to count as drifted."""
    stall: float = 300.0
    """A job being refused hits that takes no step for so long gives its turn to another."""


class Stage(StrEnum):
    """The state of a job's probing."""

    WAITING = "waiting"
    """New; another job of its dataset is being probed."""
    REFUSING = "refusing"
    MEASURING = "measuring"
    RESTING = "resting"


@dataclass(frozen=True, slots=True)
class ReportWindow:
    """The reports that count since a stage began: ``steps`` that took ``seconds``, of which ``waited`` for data.

    ``last``: the totals up to which reports were read; ``skip``: steps that are yet to be ignored; ``seen``: all steps, whether
    they count or not; ``moved_at``: when the last of them was reported.
    """

    last: PhaseTotals = PhaseTotals()
    skip: int = 0
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    seen: int = 0
    moved_at: float = 0.0

    def read(self, totals: PhaseTotals, now: float, least_hits: float, skip: int) -> ReportWindow:
        """Record a report. Lower totals mean that the job was restarted, so its ``skip`` steps are due."""
        steps, seconds = totals.steps - self.last.steps, totals.seconds - self.last.seconds
        waited, items = totals.waited - self.last.waited, totals.items - self.last.items
        hits = totals.hits - self.last.hits
        if min(steps, seconds, waited, items, hits) < 0:
            return replace(self, last=totals, skip=skip, moved_at=now)
        if steps == 0:
            return self
        noted = replace(self, last=totals, seen=self.seen + steps, moved_at=now)
        if self.skip > 0:
            return replace(noted, skip=max(0, self.skip - steps))
        if hits < least_hits * items or (least_hits > 0 and items == 0):
            return noted
        return replace(
            noted, steps=self.steps + steps, seconds=self.seconds + seconds, waited=self.waited + min(waited, seconds)
        )

    @property
    def each(self) -> float:
        """Seconds per step, 0 if none counted."""
        return self.seconds / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The state of probing of one job; it begins as ``ProbeState()``.

    ``cache`` and ``benefit`` (0: unknown) are the last verdict, the ``measurements``-th, given at ``measured_at``. ``miss`` and
    ``hit`` are the seconds per mini-batch it rests on, ``waited`` the share of ``miss`` without data, ``steady`` the seconds per
    mini-batch since. ``spacing``: seconds after which a drift is followed next. ``held``: how the dataset was held last.
    """

    stage: Stage = Stage.WAITING
    held: CachingMode = CachingMode.NONE
    window: ReportWindow = ReportWindow()
    cache: bool = True
    benefit: float = 0.0
    measurements: int = 0
    measured_at: float = 0.0
    miss: float = 0.0
    hit: float = 0.0
    waited: float = 0.0
    steady: float = 0.0
    spacing: float = 0.0

    @property
    def order(self) -> JobOrder:
        """The plan for the job. While it is refused hits, it does not use the cache at all."""
        match self.stage:
            case Stage.REFUSING:
                return JobOrder(False, Phase.PROBE_MISS, self.benefit)
            case Stage.WAITING | Stage.MEASURING:
                return JobOrder(True, Phase.MEASURE, self.benefit)
            case Stage.RESTING:
                return JobOrder(self.cache, Phase.STEADY, self.benefit)


@dataclass(frozen=True, slots=True)
class Measuring:
    """A measurement under way: ``batches`` of those needed count so far, and ``seconds`` are left at the present speed.

    ``stage``: waiting for another job of the dataset, without the cache, or with it.
    """

    stage: Literal["waiting", "without", "with"]
    batches: int = 0
    seconds: float | None = None


def measuring(known: ProbeState | None, batches: int) -> Measuring | None:
    """How far the measurement of a job is; ``None`` if none is under way.

    Args:
        known: the state of its probing; ``None`` if it was never probed.
        batches: mini-batches that each side is measured for.
    """
    if known is None or batches == 0 or known.stage is Stage.RESTING:
        return None
    if known.stage is Stage.WAITING:
        return Measuring("waiting")
    window, without = known.window, known.stage is Stage.REFUSING
    left = window.skip + max(0, batches - window.steps)
    return Measuring("without" if without else "with", window.steps, left * window.each if window.each else None)


def times(known: ProbeState | None, totals: Mapping[Phase, PhaseTotals]) -> tuple[float, float]:
    """Seconds of a mini-batch of a job, without the cache and with it; 0: not known.

    Those of its last verdict, whose quotient is its benefit. Until there is one, the means of all that it reported of either
    phase, the mini-batches included that will not count.

    Args:
        known: of the job; ``None`` if it was never probed.
        totals: what the job has done so far, per phase.
    """
    miss, hit = (0.0, 0.0) if known is None else (known.miss, known.hit)
    return miss or _mean(totals, Phase.PROBE_MISS), hit or _mean(totals, Phase.MEASURE)


def _mean(totals: Mapping[Phase, PhaseTotals], phase: Phase) -> float:
    found = totals.get(phase, PhaseTotals())
    return found.seconds / found.steps if found.steps else 0.0


def due(state: ProbeState, now: float, settings: ProbeSettings) -> bool:
    """Whether the job should be probed, and only waits for its turn."""
    if settings.batches == 0:
        return False
    if state.stage is not Stage.RESTING:
        return state.stage is Stage.WAITING
    passed = now - state.measured_at
    early = _drifted(state, settings) or (state.measurements == 0 and state.miss == 0)
    return passed >= settings.every or (early and passed >= max(state.spacing, settings.soonest))


def step(
    state: ProbeState,
    totals: Mapping[Phase, PhaseTotals],
    *,
    held: CachingMode,
    turn: bool,
    now: float,
    settings: ProbeSettings,
) -> ProbeState:
    """The state after the job's last report.

    Args:
        state: the state before.
        totals: what the job has done so far, per phase.
        held: how its dataset has been held since the last step; with ``NONE`` no hits can come.
        turn: it may be refused hits now, if it is due.
        now: seconds of a clock that all leaders share.
        settings: how jobs are probed.
    """
    if settings.batches == 0:
        return replace(state, stage=Stage.RESTING, held=held, cache=True, benefit=0.0)
    if held is not state.held and state.stage in (Stage.MEASURING, Stage.RESTING):
        emptied = replace(state.window, steps=0, seconds=0.0, waited=0.0, skip=_skip(settings))
        state = replace(state, window=emptied)
    state = _not_after(replace(state, held=held), now)
    if turn and due(state, now, settings):
        return _begin(state, totals, now, settings)
    match state.stage:
        case Stage.WAITING:
            return state
        case Stage.REFUSING:
            return _refuse(_read(state, totals, Phase.PROBE_MISS, 0.0, now, settings), totals, now, settings)
        case Stage.MEASURING:
            return _measure(_read(state, totals, Phase.MEASURE, LEAST_HITS, now, settings), totals, now, settings)
        case Stage.RESTING:
            least = LEAST_HITS if _is_open(state) else 0.0
            return _rest(_read(state, totals, Phase.STEADY, least, now, settings), totals, now, settings)


def _not_after(state: ProbeState, now: float) -> ProbeState:
    """The state without times that are yet to come, as a clock that was set back makes them: no wait depends on how far."""
    if max(state.measured_at, state.window.moved_at) <= now:
        return state
    window = replace(state.window, moved_at=min(state.window.moved_at, now))
    return replace(state, measured_at=min(state.measured_at, now), window=window)


def _skip(settings: ProbeSettings) -> int:
    return int(SKIPPED * settings.batches)


def _read(
    state: ProbeState,
    totals: Mapping[Phase, PhaseTotals],
    phase: Phase,
    least_hits: float,
    now: float,
    settings: ProbeSettings,
) -> ProbeState:
    report = totals.get(phase, state.window.last)
    return replace(state, window=state.window.read(report, now, least_hits, _skip(settings)))


def _enter(
    state: ProbeState, stage: Stage, totals: Mapping[Phase, PhaseTotals], now: float, settings: ProbeSettings
) -> ProbeState:
    phase = {Stage.REFUSING: Phase.PROBE_MISS, Stage.MEASURING: Phase.MEASURE}.get(stage, Phase.STEADY)
    window = ReportWindow(last=totals.get(phase, PhaseTotals()), skip=_skip(settings), moved_at=now)
    return replace(state, stage=stage, window=window)


def _is_open(state: ProbeState) -> bool:
    """Whether only its time with the cache is missing."""
    return state.cache and state.benefit == 0 and state.miss > 0


def _drifted(state: ProbeState, settings: ProbeSettings) -> bool:
    reference = state.hit if state.cache else state.miss
    return min(reference, state.steady) > 0 and abs(state.steady / reference - 1) > settings.drift


def _begin(state: ProbeState, totals: Mapping[Phase, PhaseTotals], now: float, settings: ProbeSettings) -> ProbeState:
    doubled = min(2 * max(state.spacing, settings.soonest), settings.every)
    spacing = doubled if _drifted(state, settings) else settings.soonest
    state = replace(state, spacing=spacing)
    if state.cache:
        return _enter(state, Stage.REFUSING, totals, now, settings)
    return _enter(replace(state, miss=state.steady or state.miss), Stage.MEASURING, totals, now, settings)


def _refuse(state: ProbeState, totals: Mapping[Phase, PhaseTotals], now: float, settings: ProbeSettings) -> ProbeState:
    window = state.window
    if window.steps >= settings.batches:
        known = replace(state, miss=window.each, waited=window.waited / window.seconds if window.seconds > 0 else 0.0)
        return _enter(known, Stage.MEASURING, totals, now, settings)
    if now - window.moved_at >= settings.stall:
        return _enter(replace(state, measured_at=now), Stage.RESTING, totals, now, settings)
    return state


def _measure(state: ProbeState, totals: Mapping[Phase, PhaseTotals], now: float, settings: ProbeSettings) -> ProbeState:
    window = state.window
    if window.steps >= settings.batches:
        return _conclude(state, window.each, totals, now, settings)
    if state.held is not CachingMode.NONE and window.seen < settings.patience * settings.batches:
        return state
    if window.steps >= ENOUGH * settings.batches:
        return _conclude(state, window.each, totals, now, settings)
    if state.miss > 0 and LEAST_BENEFIT * (1 - state.waited) > 1:
        return _conclude(state, state.miss * (1 - state.waited), totals, now, settings)
    return _enter(replace(state, measured_at=now), Stage.RESTING, totals, now, settings)


def _conclude(
    state: ProbeState, hit: float, totals: Mapping[Phase, PhaseTotals], now: float, settings: ProbeSettings
) -> ProbeState:
    benefit = min(state.miss / hit, MOST_BENEFIT) if hit > 0 else 0.0
    cache = benefit >= LEAST_BENEFIT or benefit == 0
    verdict = replace(
        state, cache=cache, benefit=benefit, measurements=state.measurements + 1, measured_at=now, hit=hit, steady=0.0
    )
    return _enter(verdict, Stage.RESTING, totals, now, settings)


def _rest(state: ProbeState, totals: Mapping[Phase, PhaseTotals], now: float, settings: ProbeSettings) -> ProbeState:
    window = state.window
    if window.steps < settings.batches:
        return state
    if _is_open(state):
        return _conclude(state, window.each, totals, now, settings)
    emptied = replace(window, steps=0, seconds=0.0, waited=0.0, seen=0)
    return replace(state, steady=window.each, window=emptied)
