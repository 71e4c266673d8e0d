"""Chunk rotation: the two chunks of a dataset that are held, and their changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.policies.space.chunks import ChunkEvent, ChunkReason, JobView, RotationMemory, rotate
from gateway.policies.space.orders import ChunkRotation

UNITS = 10
_MEMORY = TypeAdapter(RotationMemory)
FORCE = 60.0
LOADED, MARKED, STARTED = ChunkReason.LOADED, ChunkReason.MARKED, ChunkReason.STARTED
UNREFERENCED, FORCED = ChunkReason.UNREFERENCED, ChunkReason.FORCED


@dataclass
class Rotation:
    """A dataset's rotation, whose invariants are checked with every step."""

    units: int = UNITS
    chunks: ChunkRotation = field(default_factory=ChunkRotation)
    memory: RotationMemory = field(default_factory=RotationMemory)
    now: float = 0.0
    events: list[ChunkEvent] = field(default_factory=list)

    def step(
        self, jobs: Sequence[JobView], *, loaded: bool = False, seconds: float = 1.0
    ) -> list[tuple[ChunkReason, int]]:
        """Take one step, ``seconds`` after the last one; what happened."""
        self.now += seconds
        before = self.chunks
        self.chunks, self.memory, events = rotate(
            before, self.memory, jobs, loaded=loaded, units=self.units, now=self.now, force_after=FORCE
        )
        self.events.extend(events)
        self._check(before)
        return [(event.reason, event.chunk) for event in events]

    def settle(self, jobs: Sequence[JobView]) -> None:
        """Complete each load that begins, until a step changes nothing."""
        for _ in range(4 * self.units):
            if not self.step(jobs, loaded=True, seconds=0.0):
                return
        raise AssertionError("the rotation runs in circles")

    def _check(self, before: ChunkRotation) -> None:
        held = self.chunks.held
        assert len(held) == len(set(held)) <= 2
        assert all(0 <= chunk < self.units for chunk in held)
        assert self.chunks.active in (held or (-1,))
        assert self.chunks.marked == self.chunks.complete[:-1]
        assert set(self.chunks.complete) <= set(before.held)


def job(name: str, *upcoming: int, left: int | None = None) -> JobView:
    """A job; ``left`` is the number of its upcoming chunks that belong to its epoch, by default all."""
    return JobView(name, upcoming, len(upcoming) if left is None else left)


def at(name: str, position: int, sequence: Sequence[int] = range(UNITS)) -> JobView:
    """A job that is at one place of an order of chunks, which it takes again in every epoch."""
    count = len(sequence)
    place = position % count
    upcoming = (*sequence[place:], *sequence[:2])
    return JobView(name, tuple(upcoming), count - place)


def test_a_new_job_begins_where_the_others_are_when_they_are_faster_than_the_load():
    """Rule: the newest complete chunk that all have finished is soon taken away, and with it the company of the others."""
    rotation = Rotation(chunks=ChunkRotation((3,), 5, active=3))
    rotation.step([job("a", 5, 7, 8), job("b", 5, 7, 8)], loaded=False)
    assert rotation.chunks == ChunkRotation((3,), 5, active=5)
    rotation.step([job("a", 5, 7, 8), job("b", 3, 5, 7)], loaded=False)
    assert rotation.chunks == ChunkRotation((3,), 5, active=3)


def test_a_new_job_does_not_begin_on_what_was_loaded_ahead_of_the_others():
    """Rule: a new job begins at the newest complete chunk only if a job uses it or no job uses any chunk; otherwise it would stay
    one chunk ahead of the others."""
    rotation = Rotation(chunks=ChunkRotation((3,), 5, active=3))
    rotation.step([job("a", 3, 5, 7)], loaded=True)
    assert (rotation.chunks.complete, rotation.chunks.active) == ((3, 5), 3)
    rotation.step([job("a", 3, 5, 7), job("b", 5, 7)])
    assert rotation.chunks.active == 5
    rotation.step([])
    assert rotation.chunks.active == 5


def test_a_new_job_begins_on_the_next_chunk_when_the_others_are_nearer_to_it():
    """Rule: the front runner took ten seconds for its last chunk, so after more than five it is more than half through this one;
    who follows it later changes nothing."""
    rotation = Rotation(chunks=ChunkRotation((2, 3), active=2, marked=(2,)))
    slow = job("slow", 2, 3, 5)
    rotation.step([slow, job("fast", 2, 3, 5)])
    rotation.step([slow, job("fast", 3, 5, 7)], seconds=10.0)
    both = [job("slow", 3, 5, 7), job("fast", 3, 5, 7)]
    rotation.step(both, seconds=3.0)
    rotation.step(both, loaded=True, seconds=2.0)
    assert (rotation.chunks.complete, rotation.chunks.active) == ((3, 5), 3)
    rotation.step(both, seconds=0.1)
    assert rotation.chunks.active == 5


def test_a_new_job_begins_with_the_others_while_their_next_chunk_is_not_complete():
    """Rule: while others use the complete chunk, a new job does not begin with the one that is being loaded."""
    rotation = Rotation(chunks=ChunkRotation((2, 3), active=2, marked=(2,)))
    rotation.step([job("a", 2, 3, 5)])
    rotation.step([job("a", 3, 5, 7)], seconds=10.0)
    rotation.step([job("a", 3, 5, 7)], seconds=9.0)
    assert rotation.chunks == ChunkRotation((3,), 5, active=3)


def test_a_new_job_begins_with_the_others_while_nobody_knows_how_long_a_chunk_takes():
    """Rule: until a chunk's time was measured, a new job begins with the others."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=3, marked=(3,)))
    rotation.step([job("a", 3, 5, 7)])
    rotation.step([job("a", 3, 5, 7)], seconds=1000.0)
    assert rotation.chunks.active == 3


def test_jobs_that_begin_together_stay_together():
    """Rule: three jobs of which two come a little later, each where the plan says: all in one chunk, each loaded once."""
    rotation = Rotation()
    places = {"a": 0}
    for turn in range(4 * UNITS):
        if turn == 3:
            assert rotation.chunks.complete == (0, 1)
            places |= {"b": rotation.chunks.active, "c": rotation.chunks.active}
        rotation.step([at(name, place) for name, place in places.items()], loaded=True)
        if turn % 4 == 3:
            assert {at(name, place).current for name, place in places.items()} < set(rotation.chunks.complete)
            places = {name: place + 1 for name, place in places.items()}
    assert len(set(places.values())) == 1
    assert [event.chunk for event in rotation.events if event.reason is STARTED] == [*range(UNITS), 0]


def test_the_first_chunk_is_loaded_then_the_next():
    """Rule: a job's chunk is loaded first, and the one after it as soon as there is room."""
    rotation = Rotation()
    assert rotation.step([job("a", 3, 5, 7)]) == [(STARTED, 3)]
    assert rotation.chunks == ChunkRotation((), 3, active=3)
    assert rotation.step([job("a", 3, 5, 7)], loaded=True) == [(LOADED, 3), (STARTED, 5)]
    assert rotation.chunks == ChunkRotation((3,), 5, active=3)


def test_a_newer_complete_chunk_marks_the_older_one():
    """Rule: when a second chunk is complete, the first is marked, and stays until none of its jobs needs it."""
    rotation = Rotation(chunks=ChunkRotation((3,), 5, active=3))
    assert rotation.step([job("a", 3, 5, 7)], loaded=True) == [(LOADED, 5), (MARKED, 3)]
    assert rotation.chunks == ChunkRotation((3, 5), active=3, marked=(3,))


def test_an_unused_chunk_makes_room_for_the_next():
    """Rule: when the last job has left the older chunk, it goes, and the third is loaded."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=5, marked=(3,)))
    assert rotation.step([job("a", 3, 5, 7), job("b", 5, 7)]) == []
    assert rotation.step([job("a", 5, 7), job("b", 5, 7)]) == [(UNREFERENCED, 3), (STARTED, 7)]
    assert rotation.chunks == ChunkRotation((5,), 7, active=5)


def test_what_a_slower_job_needs_next_stays():
    """Rule: the newer chunk is kept for a job that is about to use it, though the faster one has left it."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=5, marked=(3,)))
    assert rotation.step([job("fast", 7, 8), job("slow", 3, 5)]) == []


def test_the_newer_chunk_leaves_if_only_it_is_unused():
    """Rule: after a jump the newer chunk may be unused; then it leaves, and new jobs begin with the older."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=5, marked=(3,)))
    assert rotation.step([job("a", 3, 8, 9)]) == [(UNREFERENCED, 5), (STARTED, 8)]
    assert rotation.chunks == ChunkRotation((3,), 8, active=3)


def test_nothing_leaves_while_nothing_else_is_wanted():
    """Rule: no chunk is evicted while every job has the chunks that it needs."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=5, marked=(3,)))
    assert rotation.step([job("a", 5)]) == []


def test_the_end_of_an_epoch_does_not_stop_the_rotation():
    """Rule: in the last chunk of an epoch, the first one of the next is loaded and kept."""
    rotation = Rotation(chunks=ChunkRotation((8, 9), active=9, marked=(8,)))
    last = job("a", 9, 0, 1, left=1)
    assert rotation.step([last]) == [(UNREFERENCED, 8), (STARTED, 0)]
    assert rotation.step([last], loaded=True) == [(LOADED, 0), (MARKED, 9)]
    assert rotation.step([last]) == []


def test_what_a_job_would_take_next_is_not_loaded_while_it_will_follow_others():
    """Rule: jobs at the end of an epoch propose the first chunks of the next one. While another job is in mid-epoch they will
    follow it, so its next chunk is loaded; otherwise their proposal is."""
    rotation = Rotation(chunks=ChunkRotation((8, 9), active=9, marked=(8,)))
    ending = [job("a", 9, 4, 6, left=1), job("b", 9, 4, 6, left=1), job("d", 4, 6, left=0)]
    assert rotation.step([*ending, job("c", 9, 0, 1, 2, 4)]) == [(UNREFERENCED, 8), (STARTED, 0)]
    rotation = Rotation(chunks=ChunkRotation((8, 9), active=9, marked=(8,)))
    assert rotation.step([*ending, job("c", 9, 4, 6, left=1)]) == [(UNREFERENCED, 8), (STARTED, 4)]


def test_the_chunk_wanted_by_most_is_loaded():
    """Rule: two jobs outvote one, regardless of that job's position."""
    rotation = Rotation()
    assert rotation.step([job("a", 1, 2), job("b", 7, 8), job("c", 7, 9)]) == [(STARTED, 7)]


def test_at_a_tie_the_chunk_wanted_sooner_then_the_lower_number():
    """Rule: one job misses chunk 4 now, another needs 2 next; of two that are missed now it is the lower number."""
    rotation = Rotation(chunks=ChunkRotation((1,), active=1))
    assert rotation.step([job("a", 1, 2), job("b", 4, 5)]) == [(STARTED, 4)]
    assert Rotation().step([job("a", 6, 1), job("b", 4, 5)]) == [(STARTED, 4)]


def test_a_slow_job_loses_its_chunk_after_the_time_limit():
    """Rule: the first job finished chunk 3 a minute ago; a job that is still in it loses it, and is named."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=5, marked=(3,)))
    slow = job("slow", 3, 5, 7)
    rotation.step([slow, job("fast", 3, 5, 7)])
    assert rotation.step([slow, job("fast", 5, 7)]) == []
    assert rotation.step([slow, job("fast", 5, 7)], seconds=FORCE - 1) == []
    assert rotation.step([slow, job("fast", 5, 7)]) == [(FORCED, 3), (STARTED, 7)]
    assert rotation.events[-2] == ChunkEvent(FORCED, 3, ("slow",))


def test_who_begins_is_no_laggard_of_those_who_are_gone():
    """Rule: the time limit counts from the moment when the first of the present jobs finished the chunk. Jobs that finished it
    and left do not count against a new job."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=3, marked=(3,)))
    rotation.step([job("gone", 3, 5, 7), job("old", 3, 5, 7)])
    rotation.step([job("gone", 5, 7), job("old", 3, 5, 7)])
    new = job("new", 3, 5, 7)
    rotation.step([job("old", 3, 5, 7), new], seconds=FORCE)
    assert rotation.memory.finished == {}
    assert rotation.step([job("old", 5, 7), new], seconds=FORCE) == []
    assert rotation.step([job("old", 5, 7), new], seconds=FORCE - 1) == []
    assert rotation.step([job("old", 5, 7), new]) == [(FORCED, 3), (STARTED, 7)]


def test_the_time_limit_counts_from_the_next_when_the_first_is_gone():
    """Rule: two jobs finished the chunk, ten seconds apart, and the first ended: the second's time counts."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=3, marked=(3,)))
    slow = job("slow", 3, 5, 7)
    rotation.step([slow, job("a", 3, 5, 7), job("b", 3, 5, 7)])
    rotation.step([slow, job("a", 5, 7), job("b", 3, 5, 7)])
    rotation.step([slow, job("a", 5, 7), job("b", 5, 7)], seconds=10.0)
    assert rotation.step([slow, job("b", 5, 7)], seconds=FORCE - 1) == []
    assert rotation.step([slow, job("b", 5, 7)]) == [(FORCED, 3), (STARTED, 7)]


def test_who_lost_a_chunk_has_no_say_until_it_is_past_it():
    """Rule: the slow job in the chunk it lost neither keeps chunks nor has any loaded; in the next one it counts again."""
    memory = RotationMemory({"slow": 3, "fast": 5}, {}, {"slow": (3,)})
    rotation = Rotation(chunks=ChunkRotation((4, 5), active=5, marked=(4,)), memory=memory)
    assert rotation.step([job("slow", 3, 4, 6), job("fast", 5, 7)]) == [(UNREFERENCED, 4), (STARTED, 7)]
    rotation.step([job("slow", 6, 8), job("fast", 7)], loaded=True)
    assert rotation.chunks == ChunkRotation((7,), 6, active=7)


def test_what_was_taken_by_force_is_not_loaded_again_in_this_epoch():
    """Rule: chunk 4 was taken from the slow job before it got there; it votes for the one after."""
    memory = RotationMemory({"slow": 3}, {}, {"slow": (4,)})
    rotation = Rotation(chunks=ChunkRotation((3,), active=3), memory=memory)
    assert rotation.step([job("slow", 3, 4, 6), job("fast", 3, 6, 8)]) == [(STARTED, 6)]


def test_alone_the_one_who_lost_a_chunk_gets_it_again():
    """Rule: when no other job waits, the chunk in use is loaded, also one that was taken away before."""
    rotation = Rotation(chunks=ChunkRotation((5,), active=5), memory=RotationMemory({"slow": 3}, {}, {"slow": (3,)}))
    assert rotation.step([job("slow", 3, 5, 7)]) == [(STARTED, 3)]


def test_a_loss_is_forgotten_with_the_epoch():
    """Rule: a chunk that a job lost in one epoch is loaded for it again in the next."""
    memory = RotationMemory({"slow": 9, "other": 8}, {}, {"slow": (3,)})
    rotation = Rotation(chunks=ChunkRotation((9,), active=9), memory=memory)
    assert rotation.step([job("slow", 9, 3, left=1), job("other", 9, 3)]) == [(STARTED, 3)]
    assert rotation.memory.lost == {}


def test_force_needs_somebody_who_waits():
    """Rule: a chunk that others finished long ago stays while none of them waits for the next one."""
    rotation = Rotation(
        chunks=ChunkRotation((3, 5), active=5, marked=(3,)), memory=RotationMemory({}, {3: {"fast": 0.0}})
    )
    assert rotation.step([job("slow", 3), job("fast", 5)], seconds=10 * FORCE) == []


def test_a_job_that_comes_round_to_a_chunk_again_has_not_finished_it():
    """Rule: with three chunks a job soon returns to one; the time limit does not take its next chunk."""
    rotation = Rotation(units=3, chunks=ChunkRotation((0, 1), active=1, marked=(0,)))
    for position in range(30):
        here = [at("a", position, range(3))]
        rotation.step(here, seconds=FORCE)
        rotation.step(here, loaded=True, seconds=FORCE)
    assert FORCED not in {event.reason for event in rotation.events}


def test_a_job_that_is_gone_holds_nothing():
    """Rule: the heartbeats of the only job in chunk 3 expired; the others get the space."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=5, marked=(3,)))
    rotation.step([job("gone", 3, 5), job("here", 5, 7)])
    assert rotation.step([job("here", 5, 7)]) == [(UNREFERENCED, 3), (STARTED, 7)]


def test_without_jobs_what_is_complete_stays_and_nothing_is_loaded():
    """Rule: without jobs a load is given up; complete chunks are kept for the next job."""
    rotation = Rotation(chunks=ChunkRotation((3,), 5, active=3))
    assert rotation.step([]) == [(UNREFERENCED, 5)]
    assert rotation.step([]) == []
    assert rotation.chunks == ChunkRotation((3,), active=3)


def test_a_load_that_everybody_has_passed_is_given_up():
    """Rule: an origin that cannot deliver a chunk does not stop the rotation."""
    rotation = Rotation(chunks=ChunkRotation((3,), 5, active=3))
    assert rotation.step([job("a", 5, 7)], seconds=10 * FORCE) == []
    assert rotation.step([job("a", 7, 8)]) == [(UNREFERENCED, 5), (STARTED, 7)]


def test_a_load_that_only_a_slow_job_waits_for_is_given_up_after_the_time_limit():
    """Rule: force ends a load as it ends a chunk."""
    rotation = Rotation(chunks=ChunkRotation((3,), 5, active=3))
    rotation.step([job("slow", 3, 5), job("fast", 5, 7)])
    rotation.step([job("slow", 3, 5), job("fast", 7, 8)])
    assert rotation.step([job("slow", 3, 5), job("fast", 7, 8)], seconds=FORCE) == [(FORCED, 5), (STARTED, 7)]


@pytest.mark.parametrize(
    "chunks",
    [ChunkRotation((1, 2, 3, 12), 4), ChunkRotation((1, 1), 1), ChunkRotation((), 99), ChunkRotation((-4,), -7)],
)
def test_a_plan_that_holds_too_much_is_put_right(chunks):
    """Rule: a plan of another version that holds too many or unknown chunks is corrected to at most two existing ones."""
    Rotation(chunks=chunks).step([job("a", 5, 6, 77, -1)])


def test_a_job_may_name_chunks_that_do_not_exist():
    """Rule: numbers out of range are ignored, the rest counts."""
    assert Rotation().step([job("a", 99, -1, 4)]) == [(STARTED, 4)]
    assert Rotation().step([job("a", 99), job("b")]) == []


def test_a_clock_that_was_set_back_delays_force_by_no_more_than_its_time():
    """Rule: after a jump of five minutes back, the limit counts from then on."""
    rotation = Rotation(chunks=ChunkRotation((3, 5), active=5, marked=(3,)), now=1000.0)
    jobs = [job("slow", 3, 5), job("fast", 5, 7)]
    rotation.step([job("slow", 3, 5), job("fast", 3, 5)])
    rotation.step(jobs)
    rotation.step(jobs, seconds=-300.0)
    assert rotation.step(jobs, seconds=FORCE) == [(FORCED, 3), (STARTED, 7)]


def test_the_story_of_figure_7():
    """Rule: with four jobs in step, and three that join on the active chunk after two have left, at most two chunks are held and
    each chunk is loaded once per epoch (Quiver, section 7.5)."""
    rotation = Rotation()
    first = {f"job{number}": 0 for number in range(4)}
    late: dict[str, int] = {}

    def views() -> list[JobView]:
        return [at(name, position) for name, position in (first | late).items()]

    for epoch_chunk in range(2 * UNITS):
        if epoch_chunk == 3:
            assert rotation.chunks.active not in (0, 1)
            late = dict.fromkeys(("late0", "late1", "late2"), rotation.chunks.active)
        rotation.settle(views())
        for group in (first, late):
            for name in group:  # one after the other, as in a real cluster
                assert at(name, group[name]).current in rotation.chunks.held
                group[name] += 1
                rotation.step(views())
    started = [event.chunk for event in rotation.events if event.reason is STARTED]
    assert started[: 2 * UNITS] == [*range(UNITS), *range(UNITS)]
    assert FORCED not in {event.reason for event in rotation.events}


def test_a_slow_job_is_overtaken_and_the_others_are_not_held_up():
    """Rule: a job ten times slower than three others costs them one time limit each time that they overtake it, and no more."""
    rotation = Rotation()
    slow, missed = 0, 0
    for fast in range(10 * UNITS):
        jobs = [at("slow", slow), *(at(name, fast) for name in "abc")]
        rotation.step(jobs, seconds=FORCE / 4)
        rotation.step(jobs, loaded=True, seconds=FORCE / 4)
        missed += at("a", fast).current not in rotation.chunks.held
        slow += fast % 10 == 9
    forced = [event for event in rotation.events if event.reason is FORCED]
    assert {event.jobs for event in forced} == {("slow",)}
    assert missed <= 2 * len(forced)
    assert len(forced) <= 10 * UNITS // 9


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, str, int]]:
    """Sequences of events: jobs start, advance, jump and end; loads complete; time passes."""
    what = st.sampled_from(["move", "move", "move", "jump", "come", "go", "loaded", "loaded", "wait", "odd"])
    return draw(st.lists(st.tuples(what, st.sampled_from("abcd"), st.integers(0, 99)), max_size=60))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts(), st.integers(1, 12))
def test_whatever_jobs_do_two_chunks_are_held_and_the_rotation_comes_to_rest(script, units):
    """Rule: at most two chunks are held, all distinct and existing; without new reports the rotation settles; it can be stopped
    and resumed from JSON at any point."""
    rotation = Rotation(units=units)
    jobs: dict[str, JobView] = {}
    for what, name, number in script:
        position = jobs[name].current + 1 if name in jobs else number
        if what in ("come", "jump") or (what == "move" and name in jobs):
            jobs[name] = at(name, position if what == "move" else number, range(units))
        elif what == "odd":
            jobs[name] = job(name, number, number - 50, number, left=number)
        elif what == "go":
            jobs.pop(name, None)
        rotation.step(list(jobs.values()), loaded=what == "loaded", seconds=number if what == "wait" else 0.1)
        read = _MEMORY.validate_json(_MEMORY.dump_json(rotation.memory))
        assert read == rotation.memory
    rotation.settle(list(jobs.values()))
    if not jobs:
        assert rotation.chunks.loading == -1


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 12), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.permutations(range(12)))
def test_every_job_that_keeps_going_sees_every_chunk_come(units, paces, order):
    """Rule: jobs of any pace in one order: within two of the slowest job's epochs every chunk has been complete."""
    sequence = [chunk for chunk in order if chunk < units]
    rotation = Rotation(units=units)
    position = dict.fromkeys(range(len(paces)), 0)
    seen: set[int] = set()
    for turn in range(2 * units * max(paces)):
        jobs = [at(str(number), place, sequence) for number, place in position.items()]
        for _ in range(4):
            rotation.step(jobs, loaded=True, seconds=FORCE / 8)
            seen.update(rotation.chunks.complete)
        for number, pace in enumerate(paces):
            position[number] += turn % pace == pace - 1
    assert seen == set(range(units))
