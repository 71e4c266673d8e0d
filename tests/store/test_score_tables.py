"""The scores of jobs in memory: shared, bounded, forgotten with the start, and never half a part."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from gateway.model.importance import ScorePart, decode
from gateway.policies.items.importance import PartVerdict, combined
from gateway.store.shared import importance
from gateway.store.shared.decile_reads import ROWS, DecileReads
from gateway.store.shared.importance import DIRECT, FORWARDED, MOST_JOBS, Receipt, ScoreTables, TooManyScorers
from tests.other_user import NOBODY
from tests.scored import Part

DATASET = "d" * 64
JOB = "tenant/job"
ITEMS = 100


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Path of the generations table; it does not exist."""
    return tmp_path / "larder-0-abc"


def send(tables: ScoreTables, part: Part, job: str = JOB, way: int = DIRECT, now: float = 1000.0) -> Receipt:
    """Have a part applied."""
    decoded = decode(part.body, ITEMS)
    return tables.receive(job, DATASET, ITEMS, decoded, hash(part.body) & 0xFFFFFFFF, way, now)


def scores(tables: ScoreTables, job: str = JOB) -> dict[int, float]:
    """Scores of a job, by item."""
    (found,) = [table for table in tables.of(DATASET, ITEMS) if table.job == job]
    return {index: score for index, score in enumerate(found.scores.tolist()) if not math.isnan(score)}


def test_all_workers_see_the_same_scores(table: Path) -> None:
    """Rule: all workers see one worker's scores and know the base of the next part."""
    one, other = ScoreTables(table), ScoreTables(table)
    assert send(one, Part(1, 0, {1: 1.0, 2: 2.0}, {7: 3})) == Receipt(PartVerdict.APPLY, 1, 2)
    assert send(other, Part(2, 1, {2: 4.0, 3: 3.0}, {8: 1}, epoch=2), now=1100.0) == Receipt(PartVerdict.APPLY, 2, 3)
    for tables in (one, other):
        assert scores(tables) == {1: 1.0, 2: 4.0, 3: 3.0}
        (found,) = tables.of(DATASET, ITEMS)
        assert (found.updated, found.interval, found.epoch) == (1100.0, 100.0, 2)
        assert np.flatnonzero(found.draws).tolist() == [8]
        assert found.mean == pytest.approx(8 / 3)


def test_a_table_that_is_seen_while_it_is_made_has_its_job_later(table: Path) -> None:
    """Rule: a worker that looks while another one makes the file, before the name is in it, sees the job's scores afterwards."""
    one, other = ScoreTables(table), ScoreTables(table)
    path = one._path(DATASET, JOB)
    with path.open("wb") as file:
        file.truncate(importance._HEAD + 3 * ITEMS)
    assert other.of(DATASET, ITEMS) == []
    send(one, Part(1, 0, {1: 1.0}))
    assert scores(other) == {1: 1.0}


def test_an_interval_is_from_epoch_to_epoch(table: Path) -> None:
    """Rule: only parts of different epochs give an interval; homes that change send parts within one."""
    tables = ScoreTables(table)
    send(tables, Part(1, 0, {1: 1.0}))
    send(tables, Part(2, 0, {1: 1.0}, whole=True), now=1010.0)
    assert tables.of(DATASET, ITEMS)[0].interval == 0
    send(tables, Part(3, 2, {1: 2.0}, epoch=2), now=1500.0)
    assert tables.of(DATASET, ITEMS)[0].interval == 490.0


def test_a_part_that_came_before_changes_nothing(table: Path) -> None:
    """Rule: a part is applied once, and a part on another base not at all; the answer has the present base."""
    tables = ScoreTables(table)
    first = Part(1, 0, {1: 1.0})
    send(tables, first)
    assert send(tables, first, now=2000.0) == Receipt(PartVerdict.REPEATED, 1, 1)
    for other in (Part(9, 8, {1: 5.0}), Part(1, 0, {1: 5.0})):
        assert send(tables, other) == Receipt(PartVerdict.UNKNOWN_BASE, 1, 1)
    assert scores(tables) == {1: 1.0}
    assert tables.of(DATASET, ITEMS)[0].updated == 1000.0


def test_a_whole_part_replaces_everything(table: Path) -> None:
    """Rule: a whole part removes the scores that it does not name."""
    tables = ScoreTables(table)
    send(tables, Part(5, 0, {1: 1.0, 2: 2.0}))
    send(tables, Part(1, 0, {2: 3.0}, whole=True))
    assert scores(tables) == {2: 3.0}


def test_what_is_forwarded_has_a_sequence_of_its_own(table: Path) -> None:
    """Rule: scores forwarded by another node do not replace scores that the client sends here; without those they count."""
    tables = ScoreTables(table)
    send(tables, Part(5, 0, {1: 1.0}), way=DIRECT)
    assert send(tables, Part(3, 0, {2: 2.0}, whole=True), way=FORWARDED).sequence == 3
    assert scores(tables) == {1: 1.0, 2: 2.0}
    assert send(tables, Part(6, 5, {3: 3.0}), way=DIRECT).sequence == 6
    send(tables, Part(1, 0, {1: 1.0}), "tenant/other", FORWARDED)
    send(tables, Part(2, 0, {2: 2.0}, whole=True), "tenant/other", FORWARDED)
    assert scores(tables, "tenant/other") == {2: 2.0}


def test_a_forwarded_part_of_all_homes_replaces_what_came_directly(table: Path) -> None:
    """Rule: a client that sent to all nodes and now reaches one gateway only leaves no old scores."""
    tables = ScoreTables(table)
    send(tables, Part(5, 0, {1: 1.0, 2: 2.0}, {1: 3}, whole=True), way=DIRECT)
    assert send(tables, Part(6, 0, {2: 4.0}, {2: 1}, whole=True, of_all=True), way=FORWARDED).sequence == 6
    assert scores(tables) == {2: 4.0}
    assert np.flatnonzero(tables.of(DATASET, ITEMS)[0].draws).tolist() == [2]
    assert send(tables, Part(7, 6, {3: 5.0}), way=FORWARDED).verdict is PartVerdict.APPLY
    assert scores(tables) == {2: 4.0, 3: 5.0}


def test_a_job_that_begins_again_has_its_own_list(table: Path) -> None:
    """Rule: a whole part of the same epoch replaces the list too, as of a job restarted with another seed."""
    tables = ScoreTables(table)
    send(tables, Part(5, 0, {1: 1.0}, {1: 3}, whole=True))
    send(tables, Part(6, 0, {1: 1.0}, {2: 1}, whole=True))
    assert np.flatnonzero(tables.of(DATASET, ITEMS)[0].draws).tolist() == [2]


def test_reads_take_draws(table: Path) -> None:
    """Rule: each read takes one draw, seen by all workers; an item without draws stays so until the next list."""
    one, other = ScoreTables(table), ScoreTables(table)
    send(one, Part(1, 0, {1: 1.0}, {1: 3, 2: 1, 3: 2}))
    one.of(DATASET, ITEMS)[0].drawn(np.array([1, 2, 1, 4], np.uint32))
    other.of(DATASET, ITEMS)[0].drawn(np.array([2, 3], np.uint32))
    (seen,) = one.of(DATASET, ITEMS)
    assert seen.draws[:5].tolist() == [0, 1, 0, 1, 0]
    send(other, Part(2, 1, {}, {2: 2}, epoch=2))
    assert seen.draws[:5].tolist() == [0, 0, 2, 0, 0]


def test_a_client_may_meet_one_node_and_then_another(table: Path) -> None:
    """Rule: behind a balancer parts of one sequence come directly and forwarded in turn, and each adds to the one before."""
    tables = ScoreTables(table)
    send(tables, Part(1, 0, {1: 1.0}, {1: 2}), way=DIRECT)
    assert send(tables, Part(2, 1, {2: 2.0}, {2: 3}, epoch=2), way=FORWARDED).verdict is PartVerdict.APPLY
    assert send(tables, Part(3, 2, {3: 3.0}, {3: 4}, epoch=3), way=DIRECT).verdict is PartVerdict.APPLY
    assert scores(tables) == {1: 1.0, 2: 2.0, 3: 3.0}
    assert np.flatnonzero(tables.of(DATASET, ITEMS)[0].draws).tolist() == [3]


def test_a_part_that_was_broken_off_is_as_if_lost(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a part that a dying worker left half applied does not count, and the next whole part replaces it."""
    tables = ScoreTables(table)
    send(tables, Part(1, 0, {1: 1.0}))

    class Killed(Exception):
        """The worker's end."""

    def end(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(importance.np, "isnan", end)
        with pytest.raises(Killed):
            send(tables, Part(2, 1, {2: 2.0}))
    assert tables.of(DATASET, ITEMS) == []
    assert send(tables, Part(3, 2, {3: 3.0})) == Receipt(PartVerdict.UNKNOWN_BASE, 0, 1)
    send(tables, Part(4, 0, {4: 4.0}, whole=True))
    assert scores(tables) == {4: 4.0}


def test_jobs_of_a_dataset_are_bounded(table: Path) -> None:
    """Rule: one job more than may be is refused; a job that is forgotten makes room for another."""
    tables = ScoreTables(table)
    for number in range(MOST_JOBS):
        send(tables, Part(1, 0, {1: 1.0}), f"t/{number}")
    with pytest.raises(TooManyScorers):
        send(tables, Part(1, 0, {1: 1.0}), "t/more")
    tables.drop(DATASET, "t/0")
    send(tables, Part(1, 0, {1: 1.0}), "t/more")
    assert [one.job for one in tables.of(DATASET, ITEMS)] == sorted(
        [f"t/{n}" for n in range(1, MOST_JOBS)] + ["t/more"]
    )


def test_a_dropped_job_begins_anew(table: Path) -> None:
    """Rule: a worker does not write to a dropped table that it still has mapped."""
    one, other = ScoreTables(table), ScoreTables(table)
    send(one, Part(1, 0, {1: 1.0}))
    assert scores(other) == {1: 1.0}
    one.drop(DATASET, JOB)
    assert other.of(DATASET, ITEMS) == []
    assert send(other, Part(2, 1, {2: 2.0})) == Receipt(PartVerdict.UNKNOWN_BASE, 0, 0)


def test_a_million_items_take_at_most_40_mb(table: Path) -> None:
    """Rule: the tables of the largest number of jobs, with the node's combined scores, stay within the budget."""
    items = 1_000_000
    everything = np.arange(items, dtype=np.uint32)
    values = np.linspace(0, 5, items).astype(np.float16)
    part = ScorePart(1, 0, 1, True, False, everything, values, everything[:0], np.empty(0, dtype=np.uint8))
    tables = ScoreTables(table)
    for number in range(MOST_JOBS):
        assert tables.receive(f"t/{number}", DATASET, items, part, 1, DIRECT, 1.0).scored == items
    found = tables.of(DATASET, items)
    one = combined([(table.scores, 0.5) for table in found], items)
    # The keeper has the combined scores, the ranks that the index has (as many bytes), and which items are at home.
    kept = sum(table.nbytes for table in found) + 2 * one.nbytes + items
    assert kept <= 40_000_000


def test_a_table_that_was_cut_off_is_not_read(table: Path) -> None:
    """Rule: touching what is no longer there would kill the process; the job sends everything again."""
    tables = ScoreTables(table)
    send(tables, Part(1, 0, {1: 1.0}))
    assert scores(tables) == {1: 1.0}
    (path,) = table.parent.glob(f"{table.name}*")
    os.truncate(path, 100)
    assert tables.of(DATASET, ITEMS) == []
    assert send(tables, Part(2, 1, {2: 1.0})).verdict is PartVerdict.UNKNOWN_BASE


def test_a_table_of_another_user_is_not_read(table: Path) -> None:
    """Rule: a user who guesses the name neither gives a job scores nor learns any. Needs root."""
    tables = ScoreTables(table)
    send(tables, Part(1, 0, {1: 1.0}))
    (path,) = table.parent.glob(f"{table.name}*")
    os.chown(path, NOBODY, NOBODY)
    assert ScoreTables(table).of(DATASET, ITEMS) == []
    with pytest.raises(PermissionError):
        send(tables, Part(2, 1, {2: 1.0}))


def test_counts_of_reads_outlive_the_removal_of_their_file(table: Path) -> None:
    """Rule: a worker's counts are written again with its next reads, and a file of another user counts nothing. Needs root."""
    reads, counts = DecileReads(table), np.ones((2, ROWS), dtype=np.uint64)
    reads.add(DATASET, counts)
    (path,) = table.parent.glob(f"{table.name}*")
    path.unlink()
    reads.add(DATASET, counts)
    assert reads.all(DATASET).tolist() == (2 * counts).tolist()
    foreign = path.with_name(path.name + "0")
    foreign.write_bytes(path.read_bytes())
    os.chown(foreign, NOBODY, NOBODY)
    assert reads.all(DATASET).tolist() == (2 * counts).tolist()
