"""The table of what jobs have consumed: shared by workers, bounded, and soft."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gateway.model.reader import ReadingJob
from gateway.policies.items.demand import JOBS, SILENT
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
    table = open_demand(path, ITEMS, clock)
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
