"""The table of what jobs have consumed: shared by workers, bounded, and soft."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gateway.model.reader import ReadingJob
from gateway.policies.items.demand import JOBS, SILENT
from gateway.policies.items.epoch_order import positions_of
from gateway.store.datasets import known_orders
from gateway.store.datasets.demand import DemandTable, open_demand

ITEMS = 100


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock for both workers."""
    return Clock()


@pytest.fixture
def workers(tmp_path: Path, clock: Clock) -> tuple[DemandTable, DemandTable]:
    """Returns two mappings of one table."""
    return opened(tmp_path / "t", clock), opened(tmp_path / "t", clock)


def opened(path: Path, clock: Clock) -> DemandTable:
    """A mapping of a table."""
    table = open_demand(path, ITEMS, clock=clock)
    assert table is not None
    return table


def job(name: str = "j", epoch: int = 0) -> ReadingJob:
    """A job in an epoch."""
    return ReadingJob("t", name, epoch)


def consumers(table: DemandTable, item: int) -> int:
    """The number of jobs that have consumed an item."""
    return int(table.bits[item]).bit_count()


def test_workers_see_what_each_other_has_delivered(workers: tuple[DemandTable, DemandTable]) -> None:
    """Rule: a job has one bit in all workers, and its items are marked for all of them."""
    one, other = workers
    bit = one.bit_of(job())
    assert other.bit_of(job()) == bit
    other.consumed(job(), bit, np.array([3, 4]))
    assert (one.active(), np.flatnonzero(one.bits).tolist()) == (bit, [3, 4])


def test_a_new_epoch_clears_the_jobs_bit_alone(workers: tuple[DemandTable, DemandTable]) -> None:
    """Rule: in a new epoch a job needs every item again; what other jobs have consumed stays marked."""
    table, _ = workers
    for name in ("a", "b"):
        table.consumed(job(name), table.bit_of(job(name)), 7)
    table.bit_of(job("a", 1))
    assert int(table.bits[7]) == table.bit_of(job("b"))


def test_a_rank_that_lags_behind_marks_nothing(workers: tuple[DemandTable, DemandTable]) -> None:
    """Rule: what is delivered for an epoch that is over is needed again, so it is not marked."""
    table, _ = workers
    old = table.bit_of(job())
    table.bit_of(job(epoch=1))
    assert table.bit_of(job()) == 0
    table.consumed(job(), old, 5)
    assert consumers(table, 5) == 0


def test_a_job_that_restarts_in_an_earlier_epoch_is_known_again_after_a_silence(
    workers: tuple[DemandTable, DemandTable], clock: Clock
) -> None:
    """Rule: requests for an earlier epoch do not keep the later one alive."""
    table, _ = workers
    table.bit_of(job(epoch=7))
    clock.now += SILENT + 1
    bit = table.bit_of(job(epoch=3))
    table.consumed(job(epoch=3), bit, 5)
    assert consumers(table, 5) == 1


def test_a_silent_job_is_not_active_and_goes_on_where_it_was(
    workers: tuple[DemandTable, DemandTable], clock: Clock
) -> None:
    """Rule: a job that pauses loses its claim on items for the time, but not what it has consumed."""
    table, _ = workers
    table.consumed(job(), table.bit_of(job()), 5)
    clock.now += SILENT + 1
    assert table.active() == 0
    bit = table.bit_of(job())
    assert (table.active(), int(table.bits[5])) == (bit, bit)


def test_further_jobs_are_not_counted_until_a_slot_is_free(
    workers: tuple[DemandTable, DemandTable], clock: Clock
) -> None:
    """Rule: there are slots for JOBS jobs; the next one has no bit until one of them is silent, and starts with no marks."""
    table, _ = workers
    bits = [table.bit_of(job(str(number))) for number in range(JOBS)]
    assert sorted(bits) == [1 << slot for slot in range(JOBS)]
    table.consumed(job("0"), bits[0], 9)
    assert table.bit_of(job("late")) == 0
    clock.now += SILENT / 2
    for number in range(1, JOBS):
        table.bit_of(job(str(number)))
    clock.now += SILENT / 2 + 1
    assert table.bit_of(job("late")) == bits[0]
    assert consumers(table, 9) == 0


def test_a_job_whose_slot_was_given_away_marks_nothing(workers: tuple[DemandTable, DemandTable], clock: Clock) -> None:
    """Rule: a batch that began before its job was silent for long does not mark for the job that has the slot now."""
    table, _ = workers
    bit = table.bit_of(job("slow"))
    clock.now += SILENT + 1
    assert table.bit_of(job("new")) == bit
    table.consumed(job("slow"), bit, 5)
    assert consumers(table, 5) == 0


def test_jobs_of_two_tenants_with_one_name_are_two_jobs(workers: tuple[DemandTable, DemandTable]) -> None:
    """Rule: tenants share a dataset's bytes, not their jobs."""
    table, _ = workers
    assert table.bit_of(ReadingJob("a", "j", 0)) != table.bit_of(ReadingJob("b", "j", 0))


def test_a_table_that_cannot_be_had_is_done_without(tmp_path: Path) -> None:
    """Rule: a link, or a folder that is not there, is no table; nothing is raised."""
    os.symlink(tmp_path / "elsewhere", tmp_path / "link")
    assert open_demand(tmp_path / "link", ITEMS) is None
    assert open_demand(tmp_path / "missing" / "t", ITEMS) is None
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_is_none_of_ours_is_not_mapped(tmp_path: Path) -> None:
    """Rule: a file of the right size with another beginning is left alone."""
    opened(tmp_path / "t", Clock())
    size = (tmp_path / "t").stat().st_size
    (tmp_path / "t").write_bytes(b"x" * size)
    assert open_demand(tmp_path / "t", ITEMS) is None


def ordered(name: str = "j", epoch: int = 0, order: str = "shuffled:7") -> ReadingJob:
    """A job that follows an order."""
    return ReadingJob("t", name, epoch, order)


def learned(table: DemandTable, reader: ReadingJob) -> int:
    """Let a job's orders be known; returns its bit."""
    bit = table.bit_of(reader)
    order = table.unknown(reader, bit)
    assert order is not None
    order.fill(reader)
    assert table.unknown(reader, bit) is None
    return bit


def test_what_a_job_reads_next_is_known_to_all_workers(workers: tuple[DemandTable, DemandTable]) -> None:
    """Rule: one worker computes a job's orders; each knows the next use of every item, if another job reads too."""
    one, other = workers
    bit = learned(one, ordered())
    places = np.arange(ITEMS)
    assert other.next_uses(places) is None
    other.bit_of(job("plain"))
    one.consumed(ordered(), bit, np.flatnonzero(positions_of("shuffled:7", ITEMS, 0) < 10))
    uses = other.next_uses(places)
    assert uses is not None
    (follower,) = uses.followers
    assert (follower.front, follower.length) == (10, ITEMS)
    ahead = positions_of("shuffled:7", ITEMS, 0).astype(int) - 10
    again = positions_of("shuffled:7", ITEMS, 1).astype(int) + ITEMS - 10
    assert follower.uses(places, ahead < 0).tolist() == np.where(ahead < 0, again, ahead).tolist()


def test_a_new_epoch_needs_one_more_order(workers: tuple[DemandTable, DemandTable]) -> None:
    """Rule: the order of the next epoch is computed during this one; until then any position of it is as likely."""
    table, _ = workers
    learned(table, ordered())
    table.bit_of(job("plain"))
    bit = table.bit_of(ordered(epoch=1))
    assert table.unknown(ordered(epoch=1), bit) is not None
    consumed = np.ones(ITEMS, dtype=bool)
    for later in (np.full(ITEMS, 1.5 * ITEMS), ITEMS + positions_of("shuffled:7", ITEMS, 2)):
        uses = table.next_uses(np.arange(ITEMS))
        assert uses is not None
        assert uses.followers[0].uses(np.arange(ITEMS), consumed).tolist() == later.tolist()
        order = table.unknown(ordered(epoch=1), bit)
        if order is not None:
            order.fill(ordered(epoch=1))


def test_a_job_that_has_another_order_now_is_not_taken_for_the_old_one(
    workers: tuple[DemandTable, DemandTable],
) -> None:
    """Rule: a seed that changes, or a job that takes substitutes from its next epoch on, makes what was known void."""
    table, _ = workers
    learned(table, ordered())
    table.bit_of(job("plain"))
    table.bit_of(ordered(order="shuffled:8"))
    assert table.next_uses(np.arange(ITEMS)) is None
    learned(table, ordered(order="shuffled:8"))
    assert table.next_uses(np.arange(ITEMS)) is not None
    table.bit_of(job("j", 1))
    assert table.next_uses(np.arange(ITEMS)) is None


def test_paces_are_measured(workers: tuple[DemandTable, DemandTable], clock: Clock) -> None:
    """Rule: a job that reads twice as fast is expected in half the time; its pace survives the end of an epoch."""
    table, _ = workers
    jobs = {name: ordered(name, order="sequential") for name in ("slow", "fast")}
    for reader in jobs.values():
        learned(table, reader)
    for step in range(5):
        clock.now += 1
        for pace, reader in zip((1, 2), jobs.values(), strict=True):
            table.consumed(reader, table.bit_of(reader), np.arange(step * pace, (step + 1) * pace))
    uses = table.next_uses(np.arange(ITEMS))
    assert uses is not None
    assert [round(follower.pace, 3) for follower in uses.followers] == [1, 2]
    learned(table, ordered("fast", 1, "sequential"))
    uses = table.next_uses(np.arange(ITEMS))
    assert uses is not None
    assert round(uses.followers[1].pace, 3) == 2


def test_samples_of_several_items_have_one_position(tmp_path: Path, clock: Clock) -> None:
    """Rule: orders are of samples; the members of one are used together."""
    table = open_demand(tmp_path / "t", ITEMS, 4, clock)
    assert table is not None
    learned(table, ordered())
    table.bit_of(job("plain"))
    uses = table.next_uses(np.arange(ITEMS))
    assert uses is not None
    (follower,) = uses.followers
    assert follower.this.tolist() == np.repeat(positions_of("shuffled:7", ITEMS // 4, 0), 4).tolist()


def test_a_dataset_that_is_too_large_has_no_known_orders(
    workers: tuple[DemandTable, DemandTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: memory and time for orders are bounded; such jobs are kept by demand."""
    monkeypatch.setattr(known_orders, "MOST_ITEMS", ITEMS - 1)
    table, _ = workers
    assert table.unknown(ordered(), table.bit_of(ordered())) is None
    table.bit_of(job("plain"))
    assert table.next_uses(np.arange(ITEMS)) is None
