"""The journal of a build, which survives kills."""

import hashlib
import os
import signal
import subprocess
import sys

import pytest

from larder.base import errors
from larder.digest.journal import ItemDigest, Journal, Object, remove

PURPOSE = "objects of s3://bucket"


def whole(key: str, etag: str = '"1"', size: int = 3) -> Object:
    """An object that is one item."""
    return Object(key, etag, size, (ItemDigest(None, size, hashlib.sha256(key.encode()).digest()),))


def keys(journal: Journal) -> list[str]:
    """Of this run."""
    return [known.key for known in journal.objects()]


def test_what_was_recorded_comes_back_in_order_of_the_keys_bytes(tmp_path):
    """Objects come out as they went in, ordered by UTF-8 bytes and not by code units or locale."""
    names = ["b", "a/ü", "a/z", "\U0001f600", "\uffff", "a\n", "A"]
    with Journal(tmp_path / "j", PURPOSE) as journal:
        for name in names:
            journal.record(whole(name))
        assert list(journal.objects()) == [whole(name) for name in sorted(names, key=str.encode)]


def test_items_keep_offsets_and_names(tmp_path):
    """Items inside an object come back with offset, length, digest and name."""
    items = tuple(
        ItemDigest(number * 512, number, hashlib.sha256(b"%d" % number).digest(), f"m/{number}") for number in range(9)
    )
    with Journal(tmp_path / "j", PURPOSE) as journal:
        journal.record(Object("t.tar", '"e"', 9999, items))
        journal.record(Object("empty.tar", '"e"', 1024, ()))
    with Journal(tmp_path / "j", PURPOSE) as journal:
        assert journal.confirm("t.tar", '"e"', 9999)
        assert journal.confirm("empty.tar", '"e"', 1024)
        assert [known.items for known in journal.objects()] == [(), items]


def test_only_what_did_not_change_is_confirmed(tmp_path):
    """An object is confirmed only if both ETag and size are those of the read."""
    with Journal(tmp_path / "j", PURPOSE) as journal:
        journal.record(whole("k"))
        assert journal.confirm("k", '"1"', 3)
        assert not journal.confirm("k", '"2"', 3)
        assert not journal.confirm("k", '"1"', 4)
        assert not journal.confirm("other", '"1"', 3)


def test_a_later_run_holds_what_it_confirmed_or_read(tmp_path):
    """Objects that are no longer listed stay in the journal but are not part of the next run's result."""
    with Journal(tmp_path / "j", PURPOSE) as journal:
        for key in ("stays", "goes"):
            journal.record(whole(key))
    with Journal(tmp_path / "j", PURPOSE) as journal:
        assert journal.confirm("stays", '"1"', 3)
        journal.record(whole("new"))
        assert keys(journal) == ["new", "stays"]


def test_what_is_taken_over_is_older_than_what_was_read(tmp_path):
    """`fill` never replaces an entry of the journal."""
    with Journal(tmp_path / "j", PURPOSE) as journal:
        journal.record(whole("k", '"new"'))
        assert not journal.filled
        journal.fill([whole("k", '"old"'), whole("other")])
        assert journal.filled
        assert journal.confirm("k", '"new"', 3)
        assert journal.confirm("other", '"1"', 3)


def test_what_was_recorded_survives_kill_9(tmp_path):
    """A process that dies between two instructions loses nothing that it had recorded."""
    code = f"""
import os, signal
from larder.digest.journal import ItemDigest, Journal, Object
journal = Journal(__import__("pathlib").Path({str(tmp_path / "j")!r}), {PURPOSE!r})
for n in range(50):
    journal.record(Object(f"k{{n:02}}", "e", 1, (ItemDigest(None, 1, bytes(32)),)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    with Journal(tmp_path / "j", PURPOSE) as journal:
        assert all(journal.confirm(f"k{n:02}", "e", 1) for n in range(50))


def test_two_builds_of_one_file_are_refused(tmp_path):
    """The second gets an error that names the first; the journal is free when the first has ended."""
    with Journal(tmp_path / "j", PURPOSE), pytest.raises(errors.DigestFileError, match="running"):
        Journal(tmp_path / "j", PURPOSE)
    Journal(tmp_path / "j", PURPOSE).close()


def test_a_journal_of_another_purpose_is_refused(tmp_path):
    """Digests of another bucket, or of TAR members, are never taken for these."""
    with Journal(tmp_path / "j", "members of s3://other") as journal:
        journal.record(whole("k"))
    with pytest.raises(errors.DigestFileError, match="members of s3://other, not of objects of s3://bucket"):
        Journal(tmp_path / "j", PURPOSE)


def test_a_build_that_read_nothing_stands_in_nobodys_way(tmp_path):
    """A mistyped bucket leaves no journal, so the corrected command is not refused."""
    Journal(tmp_path / "j", "objects of s3://buket").close()
    assert list(tmp_path.iterdir()) == []
    Journal(tmp_path / "j", PURPOSE).close()


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_journal_names_the_remedy(tmp_path, damage):
    """A file that is not a journal is never overwritten; the error has the remedy."""
    (tmp_path / "j").write_bytes(damage)
    with pytest.raises(errors.DigestFileError, match="remove it"):
        Journal(tmp_path / "j", PURPOSE)
    assert (tmp_path / "j").read_bytes() == damage


def test_nothing_is_left_behind(tmp_path):
    """Discarding removes the journal and SQLite's files beside it; removing a missing journal is no error."""
    journal = Journal(tmp_path / "j", PURPOSE)
    journal.record(whole("k"))
    journal.discard()
    remove(tmp_path / "j")
    assert os.listdir(tmp_path) == []
