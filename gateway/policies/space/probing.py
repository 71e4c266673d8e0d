"""Probing: the time of a job's mini-batch without the cache and with all of its data cached, from the job's reports.

Quiver, sections 4.5 and 5.3: a new job is refused all hits for about 100 mini-batches, then reads as usual, and the ratio of its
times per mini-batch, t_miss / t_hit, is its benefit. That costs reads of the store, and in a cache that holds a part of the
dataset, t_hit depends on the part. So both times are derived here, by the share of hits *h*:

    t(h) = max(t_full, t_miss - s h)

Two measurements at different shares give t_miss, the slope s and t_full: the line at h = 1, or the computing where that is more,
because a job that loads while it computes has saved all waiting before all reads are hits. A *low* measurement is made with few
hits, a *high* one with more. The benefit is t_miss / t_full; t(h) at a job's present share is its present time.

    COLD ──a window with few hits, or hits come──▶ MEASURING ──a window with hits──▶ RESTING
                                                       ▲                             │  ▲
                                                       └────── REFUSING ◀────────────┘  │
                                                                  └── hits known ───────┘

Jobs report totals that only grow, one set for each phase of the directives (``Phase``); their growth from one report to the next
counts. A *window* is ``batches`` of them, or half an epoch.

- *A cold job has no hits to refuse.* Its first mini-batches are the low measurement.
- *Ordinary reports renew both.* Each window without hits is the new low measurement, each other one the new high one.
- *A job that is warm from the start is refused hits*, for a tenth of an epoch at most, not in its first epoch, and not at all if
  its epochs are shorter than ``ENOUGH`` or ``epoch`` seconds: a phase takes some seconds to reach a job and to come back, and
  hits refused in that time are reads of the store. Its reads are stored and shared as usual.
- *Again*: every half hour; sooner if the time at the same share has changed by a quarter, but with a delay that doubles each
  time, so that a restless job is not refused hits all the time.
- *Without two measurements* the waiting time is the upper bound of the gain (``StepTimes.known`` is false).
- *The first mini-batches of a phase do not count*: the job's pipeline still holds data that was read before. Nor does the report
  in which they end.
- *A benefit is replaced* when it has changed by a twentieth, so that noise makes no new plans.
- *Turns*: one job of a dataset is refused hits at a time (the caller gives the turns), so that probing never takes the cache from
  a whole multi-job. One that is refused hits and takes no step at all gives its turn away.
- *Work before this manager knew the job* counts: its totals by phase are its measurements (``_seeded``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from gateway.policies.space.orders import JobOrder, Phase

LEAST_BENEFIT = 1.05
"""t_miss / t_full below which a job gains nothing worth its space."""
MOST_BENEFIT = 1000.0
"""The largest benefit. A larger ratio means that the job's clock was too coarse."""
FEW_HITS = 0.1
"""Share of hits up to which a window is a low measurement. Two measurements must differ by at least that much."""
SKIPPED = 0.2
"""Length of the uncounted beginning of each phase, as a share of a window."""
ENOUGH = 0.2
"""Share of ``batches`` that suffices if an epoch has no more, or hits come early."""
REFUSED = 0.1
"""The largest share of an epoch for which a job is refused hits."""
_SAME = 0.05
"""Relative change of a benefit that is ignored."""


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
    """Mini-batches of a measurement; 0 switches probing off."""
    patience: int = 20
    """Limit of the wait for hits, in multiples of ``batches``."""
    every: float = 1800.0
    """From one measurement without hits to the next."""
    soonest: float = 60.0
    """The same when the job's time per mini-batch has drifted: doubled each time until it is ``every``."""
    drift: float = 0.25
    """Share by which the time per mini-batch must change to count as drifted."""
    stall: float = 300.0
    """A job being refused hits that takes no step for so long gives its turn to another."""
    epoch: float = 30.0
    """Length of an epoch from which on a job may be refused hits."""


class Stage(StrEnum):
    """The state of a job's probing."""

    COLD = "cold"
    """New: as long as there are hardly any hits, its time without them is measured."""
    REFUSING = "refusing"
    MEASURING = "measuring"
    RESTING = "resting"


@dataclass(frozen=True, slots=True)
class StepSample:
    """A measurement: the ``share`` of hits, and the seconds of ``each`` mini-batch, of which it ``waited`` for data."""

    share: float
    each: float
    waited: float

    @property
    def busy(self) -> float:
        """Seconds of a mini-batch in which the job did not wait: no cache can save them."""
        return max(0.0, self.each - self.waited)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a mini-batch: without hits, and with hits only; ``slope``: seconds by which a share of hits of 1 would shorten
    it.

    ``known``: both were measured; otherwise the second is a lower bound: the first without the waiting.
    """

    miss: float
    full: float
    slope: float
    known: bool

    @property
    def benefit(self) -> float:
        """t_miss / t_full, at least 1."""
        return max(1.0, min(self.miss / self.full, MOST_BENEFIT)) if self.full > 0 else MOST_BENEFIT

    def at(self, share: float) -> float:
        """Seconds of a mini-batch at a share of hits."""
        return max(self.full, self.miss - share * self.slope)


@dataclass(frozen=True, slots=True)
class ReportWindow:
    """The reports that count since a stage began: ``steps`` that took ``seconds``, of which ``waited`` for data.

    ``last``: the totals up to which reports were read; ``skip``: steps that are yet to be ignored; ``seen``: all steps, whether
    they count or not; ``moved_at``: when the last of them was reported; ``warm``: a report had more than ``FEW_HITS``.
    """

    last: PhaseTotals = PhaseTotals()
    skip: int = 0
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    items: int = 0
    hits: int = 0
    seen: int = 0
    moved_at: float = 0.0
    warm: bool = False

    def read(self, totals: PhaseTotals, now: float, skip: int, *, cold: bool) -> ReportWindow:
        """Record a report. Lower totals mean that the job was restarted, so its ``skip`` steps are due.

        Args:
            totals: of the phase.
            now: seconds.
            skip: steps by which a phase begins.
            cold: a report with more than few hits does not count.
        """
        steps, seconds = totals.steps - self.last.steps, totals.seconds - self.last.seconds
        waited, items = totals.waited - self.last.waited, totals.items - self.last.items
        hits = totals.hits - self.last.hits
        if min(steps, seconds, waited, items, hits) < 0:
            return replace(self, last=totals, skip=skip, moved_at=now)
        if steps == 0:
            return self
        noted = replace(self, last=totals, seen=self.seen + steps, moved_at=now)
        if cold and hits > FEW_HITS * items:
            return replace(noted, warm=True)
        if self.skip > 0:
            return replace(noted, skip=max(0, self.skip - steps))
        return replace(
            noted,
            steps=self.steps + steps,
            seconds=self.seconds + seconds,
            waited=self.waited + min(waited, seconds),
            items=self.items + items,
            hits=self.hits + hits,
        )

    @property
    def sample(self) -> StepSample | None:
        """The measurement; ``None`` if nothing counted."""
        if not self.steps or self.seconds <= 0:
            return None
        share = min(1.0, self.hits / self.items) if self.items else 0.0
        return StepSample(share, self.seconds / self.steps, self.waited / self.steps)

    @property
    def emptied(self) -> ReportWindow:
        """The beginning of the next window."""
        return replace(self, steps=0, seconds=0.0, waited=0.0, items=0, hits=0)


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The state of probing of one job; it begins as ``ProbeState()``.

    ``low`` and ``high`` are the measurements in force, ``latest`` is the last window, with the space that the dataset has.
    ``benefit`` (0: unknown) is the verdict, the ``measurements``-th. ``low_at``: when ``low`` was measured, or the job was last
    refused hits in vain. ``spacing``: seconds after which a drift is followed next; ``drifted``: there was one since ``low_at``.
    """

    stage: Stage = Stage.COLD
    window: ReportWindow = ReportWindow()
    low: StepSample | None = None
    high: StepSample | None = None
    latest: StepSample | None = None
    benefit: float = 0.0
    measurements: int = 0
    low_at: float | None = None
    spacing: float = 0.0
    drifted: bool = False

    @property
    def order(self) -> JobOrder:
        """The plan for the job. While it is refused hits it gets none, but its reads are stored."""
        match self.stage:
            case Stage.COLD:
                return JobOrder(True, Phase.PROBE_MISS, self.benefit)
            case Stage.REFUSING:
                return JobOrder(False, Phase.PROBE_MISS, self.benefit)
            case Stage.MEASURING:
                return JobOrder(True, Phase.MEASURE, self.benefit)
            case Stage.RESTING:
                return JobOrder(True, Phase.STEADY, self.benefit)

    @property
    def times(self) -> StepTimes | None:
        """The time of a mini-batch without hits, and with hits only; ``None`` without any measurement."""
        return step_times(self.low, self.high)


def step_times(low: StepSample | None, high: StepSample | None) -> StepTimes | None:
    """Both times from two measurements; from a single one, the bound that its waiting gives; ``None`` without a measurement."""
    if low is not None and high is not None and high.share - low.share >= FEW_HITS:
        saved = (low.each - high.each) / (high.share - low.share)
        if saved <= 0:
            return StepTimes(high.each, high.each, 0.0, known=True)
        miss = low.each + saved * low.share
        return StepTimes(miss, min(miss, max(miss - saved, min(low.busy, high.busy))), saved, known=True)
    only = low or high
    if only is None or only.share > 1 - FEW_HITS:
        return None
    slope = only.waited / (1 - only.share)
    return StepTimes(only.busy + slope, only.busy, slope, known=False)


@dataclass(frozen=True, slots=True)
class Measuring:
    """A measurement under way: ``batches`` count so far, and ``seconds`` are left at the present speed.

    ``stage``: without hits, or with them.
    """

    stage: Literal["without", "with"]
    batches: int = 0
    seconds: float | None = None


def measuring(known: ProbeState | None, batches: int) -> Measuring | None:
    """How far the measurement of a job has come; ``None`` if none is under way.

    Args:
        known: the state of its probing; ``None`` if it was never probed.
        batches: mini-batches that each side is measured for.
    """
    if known is None or batches == 0 or known.stage is Stage.RESTING:
        return None
    window, sample = known.window, known.window.sample
    left = window.skip + max(0, batches - window.steps)
    stage: Literal["without", "with"] = "with" if known.stage is Stage.MEASURING else "without"
    return Measuring(stage, window.steps, None if sample is None else left * sample.each)


def times(known: ProbeState | None, totals: Mapping[Phase, PhaseTotals]) -> tuple[float, float]:
    """Seconds of a mini-batch of a job, without the cache and with the hits that it has; 0: not known.

    Args:
        known: of the job; ``None`` if it was never probed.
        totals: what the job has done so far, per phase.
    """
    measured = None if known is None else known.times
    miss = measured.miss if measured is not None and measured.known else 0.0
    now = 0.0 if known is None or known.latest is None else known.latest.each
    return miss or _mean(totals, Phase.PROBE_MISS), now or _mean(totals, Phase.STEADY) or _mean(totals, Phase.MEASURE)


def _mean(totals: Mapping[Phase, PhaseTotals], phase: Phase) -> float:
    total = totals.get(phase, PhaseTotals())
    return total.seconds / total.steps if total.steps else 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """The moment at which a job is considered: ``now`` in seconds of a clock that all leaders share; ``epoch``: mini-batches of
    one of its epochs, 0 if that is not known; ``mine``: it may be refused hits now, if it is due."""

    now: float
    epoch: int = 0
    mine: bool = False

    def window(self, settings: ProbeSettings) -> int:
        """Mini-batches of a measurement."""
        return min(settings.batches, max(1, self.epoch // 2)) if self.epoch else settings.batches

    def refusal(self, settings: ProbeSettings) -> int:
        """Mini-batches that may be refused hits, not counting skipped ones; 0: an epoch is too short."""
        if not self.epoch:
            return settings.batches
        most = REFUSED * self.epoch
        return min(settings.batches, int(most / (1 + SKIPPED))) if most >= ENOUGH * settings.batches else 0


def due(state: ProbeState, totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings) -> bool:
    """Whether the job should be refused hits, and only waits for its turn."""
    if settings.batches == 0 or state.stage is not Stage.RESTING or state.latest is None:
        return False
    if state.latest.share <= FEW_HITS or not turn.refusal(settings):
        return False
    steps = sum(total.steps for total in totals.values())
    if turn.epoch and (steps < turn.epoch or turn.epoch * state.latest.each < settings.epoch):
        return False
    if state.low_at is None:
        return True
    passed = turn.now - state.low_at
    early = state.drifted or state.low is None
    return passed >= settings.every or (early and passed >= max(state.spacing, settings.soonest))


def step(state: ProbeState, totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings) -> ProbeState:
    """The state after the job's last report.

    Args:
        state: the state before.
        totals: what the job has done so far, per phase.
        turn: the time, and whether the job may be refused hits.
        settings: how jobs are probed.
    """
    if settings.batches == 0:
        return ProbeState(stage=Stage.RESTING)
    state = _not_after(state, turn.now)
    if state == ProbeState():
        state = _seeded(totals, turn, settings)
    if turn.mine and due(state, totals, turn, settings):
        return _begin(state, totals, turn, settings)
    match state.stage:
        case Stage.COLD:
            return _cold(_read(state, totals, turn, settings), totals, turn, settings)
        case Stage.REFUSING:
            return _refuse(_read(state, totals, turn, settings), totals, turn, settings)
        case Stage.MEASURING | Stage.RESTING:
            return _observe(_read(state, totals, turn, settings), totals, turn, settings)


def _not_after(state: ProbeState, now: float) -> ProbeState:
    """The state with times in the future, which a clock that was set back leaves, replaced by ``now``, so that no wait depends on
    them."""
    if max(state.low_at or 0.0, state.window.moved_at) <= now:
        return state
    window = replace(state.window, moved_at=min(state.window.moved_at, now))
    return replace(state, low_at=None if state.low_at is None else min(state.low_at, now), window=window)


def _seeded(totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings) -> ProbeState:
    """The state of a job that this manager does not know: a new one, or one with a history."""
    window = turn.window(settings)
    samples = {phase: ReportWindow().read(total, turn.now, 0, cold=False) for phase, total in totals.items()}
    measured = [samples[phase] for phase in (Phase.STEADY, Phase.MEASURE) if phase in samples]
    high = next((report.sample for report in measured if report.steps >= window), None)
    if high is None:
        return _enter(ProbeState(), Stage.COLD, {}, turn, settings)
    cold = samples.get(Phase.PROBE_MISS, ReportWindow())
    low = cold.sample if cold.steps >= ENOUGH * window else None
    if low is not None and low.share > FEW_HITS:
        low = None
    known = replace(ProbeState(), latest=high, low=low, low_at=None if low is None else turn.now)
    return _judged(_enter(_with(known, high), Stage.RESTING, totals, turn, settings))


def _phase(stage: Stage) -> Phase:
    match stage:
        case Stage.COLD | Stage.REFUSING:
            return Phase.PROBE_MISS
        case Stage.MEASURING:
            return Phase.MEASURE
        case Stage.RESTING:
            return Phase.STEADY


def _skip(stage: Stage, turn: Turn, settings: ProbeSettings) -> int:
    window = turn.refusal(settings) if stage is Stage.REFUSING else turn.window(settings)
    return int(SKIPPED * window)


def _read(state: ProbeState, totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings) -> ProbeState:
    report = totals.get(_phase(state.stage), state.window.last)
    skip, cold = _skip(state.stage, turn, settings), state.stage is Stage.COLD
    return replace(state, window=state.window.read(report, turn.now, skip, cold=cold))


def _enter(
    state: ProbeState, stage: Stage, totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings
) -> ProbeState:
    last = totals.get(_phase(stage), PhaseTotals())
    return replace(state, stage=stage, window=ReportWindow(last, _skip(stage, turn, settings), moved_at=turn.now))


def _begin(state: ProbeState, totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings) -> ProbeState:
    doubled = min(2 * max(state.spacing, settings.soonest), settings.every)
    spacing = doubled if state.drifted else settings.soonest
    return _enter(replace(state, spacing=spacing), Stage.REFUSING, totals, turn, settings)


def _cold(state: ProbeState, totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings) -> ProbeState:
    window, length = state.window, turn.window(settings)
    if not window.warm and window.steps < length:
        return state
    if (sample := window.sample) is not None and window.steps >= ENOUGH * length:
        state = replace(state, low=sample, low_at=turn.now, latest=sample)
    return _enter(state, Stage.MEASURING, totals, turn, settings)


def _refuse(state: ProbeState, totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings) -> ProbeState:
    window = state.window
    if (sample := window.sample) is not None and window.steps >= turn.refusal(settings):
        known = replace(state, low=sample, low_at=turn.now, drifted=False, measurements=state.measurements + 1)
        return _judged(_enter(known, Stage.RESTING, totals, turn, settings))
    if turn.now - window.moved_at >= settings.stall:
        return _enter(replace(state, low_at=turn.now), Stage.RESTING, totals, turn, settings)
    return state


def _observe(state: ProbeState, totals: Mapping[Phase, PhaseTotals], turn: Turn, settings: ProbeSettings) -> ProbeState:
    """Use a window of ordinary reports, once it is complete."""
    window = state.window
    sample = window.sample
    if sample is None or window.steps < turn.window(settings):
        return state
    state = replace(state, latest=sample, window=window.emptied)
    if sample.share <= FEW_HITS:
        state = replace(state, low=sample, low_at=turn.now, drifted=False)
    else:
        state = _with(state, sample, settings.drift)
    late = state.window.seen >= settings.patience * turn.window(settings)
    if state.stage is Stage.MEASURING and (state.high is not None or late):
        known = state.times is not None and state.times.known
        state = replace(state, measurements=state.measurements + known)
        return _enter(_judged(state), Stage.RESTING, totals, turn, settings)
    return _judged(state)


def _with(state: ProbeState, sample: StepSample, drift: float = 1.0) -> ProbeState:
    """The state with a new high measurement, unless it is too near to the low one."""
    if state.low is not None and sample.share - state.low.share < FEW_HITS:
        return state
    before = state.high
    same = before is not None and abs(before.share - sample.share) <= FEW_HITS
    moved = before is not None and same and abs(sample.each / before.each - 1) > drift
    return replace(state, high=sample, drifted=state.drifted or moved)


def _judged(state: ProbeState) -> ProbeState:
    """The state with the benefit from its measurements."""
    measured = state.times
    if measured is None or not measured.known:
        return state
    if state.benefit and abs(measured.benefit / state.benefit - 1) <= _SAME:
        return state
    return replace(state, benefit=measured.benefit)
