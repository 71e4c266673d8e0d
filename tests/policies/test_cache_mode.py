"""A pipeline's caching is decided once, and decided again only after a clear change."""

from dataclasses import replace

import pytest

from gateway.policies.space.autocache import COMPUTE, CacheReason, StageProfile
from gateway.policies.space.cache_mode import (
    NEVER,
    PIN,
    CacheDecision,
    CacheFacts,
    MarkSettings,
    PipelineProfile,
    decided,
)
from gateway.policies.space.read_model import ReadModel

SETTINGS = MarkSettings()
ELEMENTS = 1000
READS = ReadModel(0.001, 0.0)
FACTS = CacheFacts(READS, room=1e12)
POOLS = {2: "results:source", 4: "results:full"}


def profile(source=0.004, end=0.01, size=100, **changes):
    """A pipeline with a mark after its second stage, and one at its end."""
    marks = (StageProfile(2, source, size, ELEMENTS), StageProfile(4, end, 10 * size, ELEMENTS))
    known = {"cache": COMPUTE, "epoch": 0, "measured": SETTINGS.elements, "pools": POOLS}
    return PipelineProfile(**{**known, "end": StageProfile(4, end, 10 * size, ELEMENTS), "marks": marks, **changes})


def reading(seconds, epoch=2, **changes):
    """A profile of an epoch that reads the end's results, which takes so many seconds per element."""
    return profile(source=0.0, end=seconds, cache=4, epoch=epoch, **changes)


def after(now, profiles, facts=FACTS):
    """The decision after several profiles."""
    for each in profiles:
        now = decided(now, each, facts, SETTINGS)
    return now


DECIDED = decided(None, profile(), FACTS, SETTINGS)


def test_one_worker_profiles_first():
    """Rule: with fewer elements than the first decision needs, nothing is decided."""
    waiting = decided(None, profile(measured=99), FACTS, SETTINGS)
    assert (waiting.stage, waiting.reason, waiting.final) == (COMPUTE, CacheReason.PROFILING, False)
    assert decided(waiting, profile(measured=99), FACTS, SETTINGS) is waiting
    assert decided(waiting, profile(), FACTS, SETTINGS) == DECIDED
    assert (DECIDED.stage, DECIDED.reason) == (4, CacheReason.FASTEST)
    assert [round(each.seconds, 9) for each in DECIDED.projections] == [10.0, 7.0, 1.0]


def test_the_same_profile_changes_nothing():
    """Rule: a profile within a quarter of the decision's changes nothing, so nothing is written to Redis."""
    assert after(DECIDED, [profile(end=0.012), profile(source=0.0035)]) is DECIDED


def test_a_pipeline_without_marks_is_not_profiled():
    """Rule: without marks nothing can be stored, so workers are scaled at once."""
    found = decided(None, profile(measured=1, marks=(), pools={}), FACTS, SETTINGS)
    assert (found.stage, found.reason, found.final) == (COMPUTE, CacheReason.NO_MARKS, True)


def test_marks_without_a_fingerprint_are_not_chosen():
    """Rule: results that cannot be named cannot be stored."""
    assert decided(None, profile(pools={2: POOLS[2]}), FACTS, SETTINGS).stage == 2


def test_stored_results_need_no_profile():
    """Rule: a second job with the same fingerprint begins with the stored results, at the last mark of several."""
    stored = dict.fromkeys(POOLS.values(), DECIDED)
    found = decided(None, profile(measured=1), replace(FACTS, stored=stored), SETTINGS)
    assert (found.stage, found.reason, found.mode(4, 0)) == (4, CacheReason.SHARED, "get")
    assert (found.costs, found.projections) == (DECIDED.costs, DECIDED.projections)
    source = decided(None, profile(measured=1), replace(FACTS, stored={POOLS[2]: DECIDED}), SETTINGS)
    assert (source.stage, source.costs) == (2, ())
    assert after(found, [reading(0.001)] * 5) is found


def test_another_fingerprint_is_another_pipeline():
    """Rule: functions that changed are decided on from the beginning, also while another mark is in force."""
    changed = {2: "results:source", 4: "results:other"}
    found = decided(DECIDED, reading(0.001, pools=changed), FACTS, SETTINGS)
    assert found.reason is CacheReason.PROFILING
    assert decided(found, profile(pools=changed, epoch=3), FACTS, SETTINGS).stage == 4


def test_costs_that_moved_are_believed_after_three_profiles():
    """Rule: when the last stage gets cheap, storing its results no longer pays; one slow minute changes nothing."""
    computing = decided(None, profile(0.0001, 0.0005), FACTS, SETTINGS)
    assert (computing.stage, computing.reason) == (COMPUTE, CacheReason.NOTHING_TO_GAIN)
    slow = [profile(epoch=3)] * SETTINGS.doubts
    assert after(computing, slow[1:]).stage == COMPUTE
    assert after(computing, [*slow[1:], profile(0.0001, 0.0005), *slow[1:]]).stage == COMPUTE
    found = after(computing, slow)
    assert (found.stage, found.epoch, found.doubts) == (4, 3, 0)


def test_more_workers_are_no_reason():
    """Rule: workers compete for cores, so the first profile with a new number of them is only a reference."""
    computing = decided(None, profile(0.0001, 0.0005), FACTS, SETTINGS)
    found = after(computing, [profile(workers=8)] * 10)
    assert replace(found, reference=None) == computing
    assert after(found, [profile(workers=8)] * 10) is found
    assert after(found, [profile(workers=workers) for workers in (7, 8) * 10]).doubts == 0


def test_costs_that_move_while_there_are_more_workers():
    """Rule: times of as many workers are compared, and the decision's change by the same factor, without the competition."""
    computing = decided(None, profile(0.0001, 0.0005), FACTS, SETTINGS)
    contended = after(computing, [profile(0.0002, 0.001, workers=8)])
    slow = [profile(0.002, 0.01, workers=8, epoch=5)] * SETTINGS.doubts
    assert after(contended, slow[1:]).stage == COMPUTE
    found = after(contended, slow)
    assert (found.stage, found.reason, found.epoch, found.workers) == (4, CacheReason.FASTEST, 5, 1)
    assert [round(each.seconds, 9) for each in found.projections] == [5.0, 5.0, 1.0]


def test_costs_that_move_little_are_the_new_ones_for_more_workers():
    """Rule: if no other mode saves enough, later profiles are compared with the latest ones."""
    computing = decided(None, profile(0.0001, 0.0005), FACTS, SETTINGS)
    drifted = [profile(0.0002, 0.00075, workers=8)] * SETTINGS.doubts
    found = after(computing, [profile(0.0002, 0.0005, workers=8), *drifted])
    assert (found.stage, found.doubts) == (COMPUTE, 0)
    assert [round(each.seconds, 9) for each in found.costs] == [0.00075, 0.0001, 0.00075]
    assert after(found, drifted) is found


def test_reads_that_become_slower_while_there_are_more_workers():
    """Rule: read times are compared with earlier reading epochs of as many workers, never with the epoch that wrote."""
    written = after(DECIDED, [reading(0.5, epoch=1, workers=8)])
    assert written is DECIDED
    contended = after(DECIDED, [reading(0.002, workers=8)] * 10)
    assert replace(contended, reference=None) == DECIDED
    found = after(contended, [reading(0.02, workers=8)] * SETTINGS.doubts)
    assert (found.stage, found.reason, found.reference) == (2, CacheReason.FASTEST, None)


def test_a_decision_with_few_workers_forgets_the_times_of_many():
    """Rule: costs that moved have moved for any number of workers, so an earlier reference would count them twice."""
    computing = decided(None, profile(0.0001, 0.0005), FACTS, SETTINGS)
    contended = after(computing, [profile(0.0002, 0.001, workers=8)])
    found = after(contended, [profile(0.0001, 0.0007)] * SETTINGS.doubts)
    assert (found.stage, found.reference) == (COMPUTE, None)
    assert after(found, [profile(0.0002, 0.0014, workers=8)] * 10).doubts == 0


def test_reads_that_are_slower_than_projected_end_the_mode():
    """Rule: in an epoch that reads, the time at the end replaces the projection; the epoch that writes does not count."""
    assert after(DECIDED, [reading(0.05, epoch=1)] * 10) is DECIDED
    found = after(DECIDED, [reading(0.05)] * SETTINGS.doubts)
    assert (found.stage, found.reason) == (2, CacheReason.FASTEST)
    kept = after(DECIDED, [reading(0.005)] * SETTINGS.doubts)
    assert (kept.stage, kept.projections[2].seconds) == (4, 5.0)
    assert after(kept, [reading(0.005)] * 10) is kept


def test_reads_that_are_measured_later_end_the_mode():
    """Rule: when reads turn out to take another time than was thought, a mode that saves a tenth by it is chosen, in any mode."""
    dear, cheap = (replace(FACTS, reads=ReadModel(0.0, per_byte)) for per_byte in (1e-5, 1e-6))
    source = decided(None, profile(), dear, SETTINGS)
    assert source.stage == 2
    reads = [profile(source=0.001, end=0.007, cache=2, epoch=3)] * SETTINGS.doubts
    assert after(source, reads[1:], cheap).stage == 2
    assert after(source, reads, cheap).stage == 4
    nearly = replace(FACTS, reads=ReadModel(0.0, 6.5e-6))
    assert after(source, reads, nearly) is source


def test_another_mode_must_save_clearly():
    """Rule: a saving of a tenth or less is not worth an epoch of writes; later profiles are compared with the new costs."""
    found = after(DECIDED, [reading(0.0075)] * SETTINGS.doubts)
    assert (found.stage, found.doubts, found.projections[2].seconds) == (4, 0, 7.5)


def test_room_that_is_gone_ends_the_mode():
    """Rule: when the pool no longer has the space, the smaller mark wins; when it comes back, the larger one."""
    small = after(DECIDED, [reading(0.001)] * SETTINGS.doubts, replace(FACTS, room=100.0 * ELEMENTS))
    assert small.stage == 2
    large = after(small, [profile(cache=2, epoch=9)] * SETTINGS.doubts)
    assert large.stage == 4
    assert after(DECIDED, [reading(0.001)] * 10, replace(FACTS, room=1e7)) is DECIDED


@pytest.mark.parametrize(("override", "stage"), [(NEVER, COMPUTE), (PIN, 4)])
def test_an_override_wins_at_once(override, stage):
    """Rule: an operator's decision needs no profile and no reason, and when it ends the fleet decides again."""
    facts = replace(FACTS, override=override)
    for now in (None, DECIDED, decided(None, profile(0.0001, 0.0005), FACTS, SETTINGS)):
        found = decided(now, profile(0.0001, 0.0005, measured=1), facts, SETTINGS)
        assert (found.stage, found.reason) == (stage, CacheReason.OVERRIDE)
        assert decided(found, profile(epoch=7, measured=5), facts, SETTINGS) is found
        assert decided(found, profile(), FACTS, SETTINGS).reason is CacheReason.FASTEST


def test_a_pin_may_name_a_mark():
    """Rule: a pinned mark is stored even if another is cheaper; a pin on an unknown mark is ignored."""
    named = replace(FACTS, override="pin:2")
    found = decided(DECIDED, profile(), named, SETTINGS)
    assert (found.stage, found.reason) == (2, CacheReason.OVERRIDE)
    assert decided(found, profile(epoch=7), named, SETTINGS) is found
    assert decided(found, profile(), replace(FACTS, override="pin:4"), SETTINGS).stage == 4
    assert decided(found, profile(), replace(FACTS, override="pin:3"), SETTINGS) is found
    assert decided(None, profile(), replace(FACTS, override="pin:3"), SETTINGS).stage == 4


def test_a_pinned_pipeline_without_a_profile_stores_its_last_mark():
    """Rule: without projections the last mark saves most."""
    empty = StageProfile(4, 0.0, 0.0, 0)
    first = profile(end=0.0, measured=0, marks=(replace(empty, stage=2), empty))
    assert decided(None, replace(first, end=empty), CacheFacts(READS, 0.0, override=PIN), SETTINGS).stage == 4


def test_the_epoch_after_the_decision_writes():
    """Rule: a rank's work follows from the mark in force and the epoch."""
    modes = [DECIDED.mode(cache, epoch) for cache, epoch in ((COMPUTE, 0), (4, 1), (4, 2))]
    assert modes == ["compute", "put", "get"]
    assert CacheDecision().mode(COMPUTE, 5) == "compute"


@pytest.mark.parametrize(
    ("took", "latency"),
    [
        pytest.param({COMPUTE: 0.004, 4: 0.0046}, 0.0035, id="reading takes longer than computing"),
        pytest.param({COMPUTE: 0.02, 2: 0.0125, 4: 0.0125}, 0.0105, id="both marks take longer than projected"),
    ],
)
def test_a_mark_that_was_left_does_not_come_back(took, latency):
    """Rule: a read model that is too optimistic costs one change of mode, not one every few epochs."""
    facts = CacheFacts(ReadModel(latency, 0.0), room=1e12)
    pools = {stage: f"results:{stage}" for stage in took if stage != COMPUTE}
    computing = {"source": took[COMPUTE], "end": took[COMPUTE], "pools": pools}
    now = decided(None, profile(**computing), facts, SETTINGS)
    stages = [now.stage]
    for _ in range(40):
        epoch = now.epoch + 2
        seen = profile(epoch=epoch, **computing)
        if now.stage != COMPUTE:
            seen = profile(source=0.0, end=took[now.stage], cache=now.stage, epoch=epoch, pools=pools)
        now = decided(now, seen, facts, SETTINGS)
        if now.stage != stages[-1]:
            stages.append(now.stage)
    assert len(stages) <= 2
    assert took[now.stage] == min(took[stage] for stage in stages)


def test_a_mark_that_was_left_comes_back_when_its_projection_falls():
    """Rule: what reading took is forgotten once room, costs or the read model make it a quarter cheaper."""
    left = after(DECIDED, [reading(0.012)] * 3 + [reading(0.0121, epoch=3)])
    assert (left.stage, left.left[4][1]) == (2, pytest.approx(12.0))
    quicker = CacheFacts(ReadModel(0.0001, 0.0), room=1e12)
    source = profile(source=0.0, end=0.0065, cache=2, epoch=left.epoch + 2)
    assert after(left, [source] * 10).stage == 2
    assert after(left, [source] * 3, quicker).stage == 4


def versioned(versions, made):
    """A profile whose last mark has several versions."""
    return replace(made, marks=(made.marks[0], replace(made.marks[1], versions=versions)))


def test_each_version_is_written_for_an_epoch():
    """Rule: with four versions, the four epochs after the decision compute and store; results of another job are only read."""
    found = decided(None, versioned(4, profile()), FACTS, SETTINGS)
    assert [found.mode(4, epoch) for epoch in range(7)] == ["put"] * 5 + ["get"] * 2
    shared = decided(None, versioned(4, profile()), replace(FACTS, stored={POOLS[4]: found}), SETTINGS)
    assert (shared.reason, shared.mode(4, 0)) == (CacheReason.SHARED, "get")
    slow = [versioned(4, reading(0.02, epoch)) for epoch in range(4)]
    assert after(shared, slow) is shared  # the other job has not stored all versions yet
    assert after(shared, [versioned(4, reading(0.02, epoch)) for epoch in range(4, 8)]).stage != 4
    # What the epochs that write cost says nothing of reads.
    assert after(found, [versioned(4, reading(0.01, epoch)) for epoch in (1, 2, 3, 4)]) is found


def test_another_mark_must_be_worth_its_versions():
    """Rule: a mark that is stored is left for one of several versions only if computing all of those pays, too."""
    found = decided(None, versioned(50, profile()), FACTS, SETTINGS)
    assert [(mode.stage, mode.seconds, round(mode.filling, 9)) for mode in found.projections[1:]] == [
        (2, 7.0, 0.0),
        (4, 1.0, 8.82),
    ]
    assert found.stage == 2
    assert after(found, [versioned(50, profile(end=0.007, cache=2, epoch=3))] * 5).stage == 2
    assert after(found, [versioned(5, profile(epoch=3))] * 5).stage == 4
