"""The table by which workers tell each other of writes."""

import subprocess
import sys

import pytest

from gateway.model.keys import ObjectKey, rights_in
from gateway.policies.reads import granularity
from gateway.store.shared import evicted, forgotten, seen, table_file
from gateway.store.shared.generations import Generations, slots_of
from gateway.store.shared.table_file import SLOTS, TWINS, remove_dead, table_of

KEY = ObjectKey("default", "bucket", "dir/ключ")
OTHER = ObjectKey("default", "bucket", "other")


@pytest.fixture
def table(tmp_path):
    """An attached table."""
    table = Generations()
    assert table.attach(tmp_path / "generations")
    return table


def test_a_bump_changes_the_number_of_the_key_only(table):
    """A write of one key leaves keys of other slots valid."""
    before, other = table.of(KEY), table.of(OTHER)
    table.bump(KEY)
    assert table.of(KEY) != before
    assert table.of(OTHER) == other


def test_every_worker_sees_a_bump(table, tmp_path):
    """Two tables on one file are one table."""
    second = Generations()
    second.attach(tmp_path / "generations")
    assert second.of(KEY) == table.of(KEY)
    table.bump(KEY)
    assert second.of(KEY) == table.of(KEY)


def test_the_slot_of_a_key_is_the_same_in_every_process():
    """The hash does not depend on Python's per-process seed."""
    code = (
        "from gateway.store.shared.generations import *; print(*slots_of(ObjectKey('default', 'bucket', 'dir/ключ')))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert tuple(map(int, printed.stdout.split())) == slots_of(KEY)


def test_bucket_and_key_are_told_apart():
    """``a/b`` in one bucket and ``b`` in bucket ``a`` hash differently, as does another origin."""
    assert (
        len({slots_of(ObjectKey(*parts))[0] for parts in (("o", "a", "bc"), ("o", "ab", "c"), ("oa", "b", "c"))}) == 3
    )


def test_a_bucket_has_the_slot_of_its_rights():
    """The slot of a bucket is that of the key under which its rights are forgotten."""
    assert slots_of(KEY)[1] == slots_of(rights_in(KEY))[0]


def test_bump_all_changes_every_slot(table, tmp_path):
    """No key keeps its number."""
    before = (tmp_path / "generations").read_bytes()[: 8 * SLOTS]
    table.bump_all()
    after = (tmp_path / "generations").read_bytes()[: 8 * SLOTS]
    assert [slot for slot in range(SLOTS) if before[8 * slot : 8 * slot + 8] == after[8 * slot : 8 * slot + 8]] == []


def test_the_first_read_of_a_key_that_was_never_written_draws_no_number(table):
    """Rule: only a write makes the next read choose a number, which costs a system call."""
    before = table.numbers.tolist()
    table.of(KEY)
    table.bump_all()
    after = table.numbers.tolist()
    table.of(KEY)
    assert [number & 1 for number in before + after] == [0] * (2 * SLOTS)
    assert table.numbers.tolist() == after


def test_distrust_is_shared_and_ends_when_cleared(table, tmp_path):
    """A mark set by one worker is seen by all, for its slot only, until it is cleared."""
    second = Generations()
    second.attach(tmp_path / "generations")
    table.distrust(KEY)
    assert (second.trusts(KEY), second.trusts(OTHER), second.distrusted()) == (False, True, [slots_of(KEY)[0]])
    second.clear([slots_of(KEY)[0]])
    assert table.trusts(KEY)


def test_a_table_survives_its_processes(table, tmp_path):
    """A fill fenced before a restart stays fenced after it."""
    table.bump(KEY)
    second = Generations()
    second.attach(tmp_path / "generations")
    assert second.of(KEY) == table.of(KEY)


def test_attaching_again_finds_the_same_table(table, tmp_path):
    """Attaching the same file again remaps nothing."""
    assert not table.attach(tmp_path / "generations")


def test_a_deleted_table_is_replaced_by_one_with_other_numbers(table, tmp_path):
    """A generation of a lost table matches none in the new table; marks are carried over."""
    before = table.of(KEY)
    table.distrust(OTHER)
    (tmp_path / "generations").unlink()
    assert table.attach(tmp_path / "generations")
    assert table.of(KEY) != before
    assert not table.trusts(OTHER)


@pytest.mark.parametrize("size", [0, 1000, 11 * SLOTS])
def test_a_file_of_the_wrong_size_is_replaced(tmp_path, size):
    """A table that was truncated would kill the process at the first access."""
    (tmp_path / "generations").write_bytes(bytes(size))
    table = Generations()
    table.attach(tmp_path / "generations")
    table.bump(KEY)
    records = 4 * (granularity.SLOTS + evicted.SLOTS + forgotten.WORDS + seen.WORDS)
    assert (tmp_path / "generations").stat().st_size == 10 * SLOTS + 16 + records + 16 + 4096
    assert [path.name for path in tmp_path.iterdir()] == ["generations"]


def test_a_bucket_bumped_is_all_its_keys_bumped(table):
    """One store changes the generation of every key of a bucket, and of no key of another one."""
    others = [KEY._replace(bucket="another"), KEY._replace(origin="another")]
    keys = [KEY._replace(key=str(number)) for number in range(100)]
    before = [[table.of(key) for key in some] for some in (keys, others)]
    table.bump(rights_in(KEY))
    assert all(table.of(key) != number for key, number in zip(keys, before[0], strict=True))
    assert [table.of(key) for key in others] == before[1]


def test_a_bumped_key_is_unread_until_a_worker_asks_for_its_generation(table, tmp_path):
    """Rule: asking for the generation of a key, in whatever worker, ends what a bump of it found unread."""
    second = Generations()
    second.attach(tmp_path / "generations")
    second.of(KEY)
    mark = table.bump(KEY)
    second.of(OTHER)
    assert table.unread([mark])
    second.of(KEY)
    assert not table.unread([mark])


@pytest.mark.parametrize("before", ["unread", "read"])
def test_a_bump_while_a_worker_asks_is_not_missed(table, monkeypatch, before):
    """Rule: a key that is bumped in the middle of a question counts as read, or what is read under the answer is not valid."""
    slots, marks = slots_of(KEY), []
    table.bump(KEY)
    if before == "read":
        table.of(KEY)

    class Bumped:
        """The numbers, bumped by another worker after the first look."""

        def __getitem__(self, slot: int) -> int:
            number = numbers[slot]
            if not marks:
                marks.append((slots[0], 12345))
                numbers[slots[0]] = 12345
            return number

        def __setitem__(self, slot: int, number: int) -> None:
            numbers[slot] = number

    numbers = table.numbers
    with monkeypatch.context() as patched:
        patched.setattr(table, "numbers", Bumped())
        generation = table.of(KEY)
    assert not (table.unread(marks) and table.at(*slots) == generation)


def test_a_second_bump_ends_the_first_ones_mark(table):
    """Rule: of two writes of one key at the same time, the one that began first cannot tell whether it was read."""
    first, second = table.bump(KEY), table.bump(KEY)
    assert (table.unread([first]), table.unread([first, second]), table.unread([second])) == (False, False, True)


def test_comparing_generations_does_not_read_a_key(table):
    """Rule: a fill that ends after a write of its key has begun leaves the key unread."""
    generation = table.of(KEY)
    mark = table.bump(KEY)
    assert not table.holds(KEY, generation)
    assert table.at(*slots_of(KEY)) != generation
    assert table.unread([mark])


def test_generations_are_stable_from_the_first_question_on(table):
    """Rule: what was read under the first generation after a bump, of the key or its bucket's rights, stays valid."""
    table.bump(KEY)
    table.bump(rights_in(KEY))
    generation = table.of(KEY)
    table.of(rights_in(KEY))
    table.of(OTHER)
    assert table.of(KEY) == generation
    assert table.holds(KEY, generation)


def test_workers_know_whether_they_share_a_table(table, tmp_path):
    """Rule: a table's name is equal for all that have it attached, and for nobody else."""
    second, private, other = Generations(), Generations(), Generations()
    second.attach(tmp_path / "generations")
    other.attach(tmp_path / "others")
    assert second.name == table.name
    assert len({table.name, private.name, other.name}) == 3


@pytest.mark.parametrize("forgotten_before", [False, True])
def test_what_was_forgotten_under_a_private_table_is_forgotten_by_all(table, tmp_path, forgotten_before):
    """Rule: attaching the shared table ends what other workers hold, if any key was forgotten before; else nothing."""
    generation = table.of(KEY)
    late = Generations()
    if forgotten_before:
        late.bump(KEY)
        late.forgotten.note_keys([KEY])
    late.attach(tmp_path / "generations")
    assert table.holds(KEY, generation) is not forgotten_before


def test_a_debt_is_shared_until_it_is_paid(table, tmp_path):
    """All workers of a node see a pending announcement; one of a bucket's rights covers all of its keys."""
    second = Generations()
    second.attach(tmp_path / "generations")
    table.owe([KEY])
    assert (second.owes(KEY), second.owes(OTHER), second.in_debt, second.trusts(KEY)) == (True, False, True, True)
    second.paid([KEY])
    table.owe([rights_in(KEY)])
    assert second.owes(KEY)
    table.owe(None)
    assert second.owes(OTHER)
    table.paid(None)
    assert not second.in_debt


def test_tables_of_directories_that_are_gone_are_removed(tmp_path):
    """Rule: an unused table of a removed cache directory is deleted with its companions; others stay."""
    shared = tmp_path / "shared"
    shared.mkdir()
    paths = {}
    for name in ("dead", "kept", "mapped"):
        (tmp_path / name).mkdir()
        paths[name] = shared / table_of(tmp_path / name).name
        table = Generations()
        table.attach(paths[name], tmp_path / name)
        paths[name].with_name(f"{paths[name].name}{TWINS}1").touch()
        if name != "mapped":
            del table
    (tmp_path / "dead").rmdir()
    (tmp_path / "mapped").rmdir()
    remove_dead(shared)
    left = {path.name for path in shared.iterdir()}
    assert left == {name for path in (paths["kept"], paths["mapped"]) for name in (path.name, f"{path.name}{TWINS}1")}


def test_a_table_that_is_removed_while_it_is_attached_is_made_anew(tmp_path, monkeypatch):
    """Rule: no worker maps a table that has no name any more."""
    path, flock, removed = tmp_path / "generations", table_file.fcntl.flock, []

    def removing(descriptor, operation):
        if not removed:
            removed.append(path.unlink())
        flock(descriptor, operation)

    monkeypatch.setattr(table_file.fcntl, "flock", removing)
    table = Generations()
    table.attach(path)
    assert removed
    assert not table.attach(path)
