"""The command `larder digest`, as a process where that matters."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from larder import cli, digest
from larder.base import errors
from larder.digest import journal
from larder.digest.writer import Row, write
from rig.origin_faults import Gate, Hang
from rig.processes import spawn, wait_until
from tests.digest.conftest import CREDENTIALS, Store

WITHIN = 60.0


@pytest.fixture(autouse=True)
def keys(monkeypatch) -> None:
    """The origin's keys in the environment, as users have theirs."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret_access_key)


@pytest.fixture
def filled(store) -> Store:
    """Thirty objects."""
    for number in range(30):
        store.put(f"k{number:02}", b"%d" % number * 100)
    return store


def command(store: Store, *words: str) -> list[str]:
    """`larder digest build` of the store's bucket."""
    return ["digest", "build", "s3://b/", "-o", str(store.file), "--endpoint", store.s3.endpoint, *words]


def process(store: Store, *words: str) -> subprocess.Popen[str]:
    """Run the command in a new process."""
    words = (sys.executable, "-m", "larder", *command(store, "--no-store-checksums", *words))
    return spawn(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def recorded(store: Store) -> int:
    """The number of objects in the journal of a stopped build."""
    with journal.Journal(store.file.with_name(store.file.name + ".partial"), "objects of s3://b") as kept:
        return sum(
            kept.confirm(key, stored.etag, len(stored.body)) for key, stored in store.s3.buckets.objects["b"].items()
        )


def hold_back(store: Store, keys: list[str]) -> Gate:
    """Let reads of these keys wait until the gate opens."""
    gate = Gate()
    for key in keys:
        store.s3.inject(Hang(method="GET", path=f"/b/{key}", gate=gate, times=99))
    return gate


def test_a_killed_build_goes_on_where_it_was(filled):
    """After kill -9, the next build does not read finished objects again, and the file equals that of an undisturbed build."""
    held = [f"k{number:02}" for number in (7, 20, 21)]
    gate = hold_back(filled, held)
    running = process(filled, "--jobs", "4")
    wait_until(lambda: len(set(filled.reads())) >= 21, WITHIN, "reading all that can be read")
    running.kill()
    running.communicate()
    gate.open()
    filled.s3.heal()
    assert not filled.file.exists()
    before = recorded(filled)
    assert before >= 15
    report = filled.build(supplied=False)
    assert report.unchanged == before
    assert sum(filled.reads().values()) == 30 - before
    resumed = filled.file.read_bytes()
    filled.file.unlink()
    filled.build(supplied=False)
    assert filled.file.read_bytes() == resumed


def test_ctrl_c_says_how_to_go_on(filled):
    """SIGINT ends the command with status 130 and without a traceback; finished objects are kept."""
    hold_back(filled, ["k29"])
    running = process(filled, "--jobs", "1")  # the others have been read when the last one is
    wait_until(lambda: filled.reads()["k29"] == 1, WITHIN, "the last read")
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=WITHIN)
    assert running.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    filled.s3.heal()
    assert filled.build(supplied=False).unchanged == 29


def test_two_builds_of_one_file_at_once_are_refused(filled):
    """The second fails at once and disturbs nothing."""
    gate = hold_back(filled, ["k05"])
    running = process(filled)
    wait_until(lambda: filled.reads()["k05"] == 1, WITHIN, "a read")
    with pytest.raises(errors.DigestFileError, match="another build"):
        digest.build("s3://b/", filled.file, endpoint=filled.s3.endpoint, credentials=CREDENTIALS)
    gate.open()
    running.communicate(timeout=WITHIN)
    assert running.returncode == 0
    assert len(digest.read(filled.file)) == 30


def test_build_prints_what_it_did(filled, capsys):
    """Items, bytes and the dataset's id; standard error stays quiet when there is nothing to say."""
    assert cli.main(command(filled, "--no-progress")) == 0
    said = capsys.readouterr()
    assert "30 items in 30 objects" in said.out
    assert digest.read(filled.file).id in said.out
    assert said.err == ""


def test_build_as_json(filled, capsys):
    """One document with the report."""
    assert cli.main(command(filled, "--json", "--include", "k0*", "--exclude", "*5", "--jobs", "2")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["items"], report["id"]) == (9, digest.read(filled.file).id)


def test_a_build_of_nothing_is_a_problem(filled, capsys):
    """A misspelt pattern or prefix exits with 1, leaves the file of an earlier build as it was, and no journal."""
    assert cli.main(command(filled)) == 0
    before = filled.file.read_bytes()
    capsys.readouterr()
    assert cli.main(command(filled, "--include", "*.jgp")) == 1
    said = capsys.readouterr()
    assert said.err == "larder: nothing below s3://b/ is an item, so no digest file was written\n"
    assert said.out == ""
    assert filled.file.read_bytes() == before
    assert [path.name for path in filled.file.parent.iterdir()] == [filled.file.name]


def test_a_build_that_fails_exits_with_1(filled, capsys):
    """The error names the object, without a traceback, and no file is written."""
    filled.s3.deny(CREDENTIALS.access_key_id, "b/k03")
    assert cli.main(command(filled)) == 1
    assert "b/'k03': AccessDenied" in capsys.readouterr().err
    assert not filled.file.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["digest"],
        ["digest", "build", "s3://b/"],
        ["digest", "build", "s3://b/", "-o", "f", "--jobs", "0"],
        ["digest", "build", "s3://b/", "-o", "f", "--tar-members", "--index", "a:b"],
        ["digest", "verify", "f", "--sample", "-1"],
    ],
)
def test_wrong_usage_exits_with_2(words, capsys):
    """Wrong usage gets argparse's message and status 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "usage: larder digest" in capsys.readouterr().err


def test_a_source_that_is_no_address_exits_with_2(tmp_path, capsys):
    """The message shows a right one."""
    words = ["digest", "build", "/data", "-o", str(tmp_path / "f"), "--endpoint", "http://127.0.0.1:1"]
    assert cli.main(words) == 2
    assert "s3://bucket/prefix" in capsys.readouterr().err


def test_show_tells_numbers_and_no_digest(filled, capsys):
    """``show`` prints items, buckets, sizes and duplicates; digests are capabilities, and shown only on request."""
    filled.put("same", b"1" * 100)
    filled.put("empty", b"")
    filled.build()
    assert cli.main(["digest", "show", str(filled.file)]) == 0
    said = capsys.readouterr().out
    file = digest.read(filled.file)
    assert file.id in said
    assert "1 (100 B)" in said
    assert all(file.digest(index).hex() not in said for index in range(len(file)))


def test_show_as_json(filled, capsys):
    """``--json`` prints the same numbers as JSON."""
    filled.put("same", b"1" * 100)
    filled.put("empty", b"")
    filled.build()
    assert cli.main(["digest", "show", str(filled.file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["items"], told["duplicates"], told["duplicate_bytes"]) == (32, 1, 100)
    assert told["buckets"] == {"b": 32}
    assert [bar for bar in told["sizes"] if bar["items"]] == [
        {"below": 1, "items": 1},
        {"below": 128, "items": 11},
        {"below": 256, "items": 20},
    ]


def test_show_tells_the_members_of_samples(tmp_path, capsys):
    """The command prints the number of samples and their members; its JSON document also has the names."""
    file = tmp_path / "samples.digest"
    rows = [Row(bytes([n]) * 32, "b", f"{n // 2}.{'jpg' if n % 2 else 'cls'}", None, n, "e", n, None) for n in range(6)]
    write(file, rows, "samples", ("cls", "jpg"))
    assert cli.main(["digest", "show", str(file)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "items 6 samples 3 members of a sample cls, jpg" in said
    assert cli.main(["digest", "show", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["members"] == ["cls", "jpg"]


def test_show_lists_digests_when_asked(filled, capsys):
    """One line per item."""
    filled.build(include=["k00"])
    assert cli.main(["digest", "show", str(filled.file), "--digests"]) == 0
    assert capsys.readouterr().out == f"{hashlib.sha256(b'0' * 100).hexdigest()}  s3://b/k00\n"


def verify(store: Store, *words: str) -> int:
    """`larder digest verify` of the store's file."""
    return cli.main(["digest", "verify", str(store.file), "--endpoint", store.s3.endpoint, *words])


def test_verify_finds_nothing_wrong_in_what_did_not_change(filled, capsys):
    """Every item is read again; status 0."""
    filled.build()
    filled.s3.seen.clear()
    assert verify(filled, "--all") == 0
    assert sum(filled.reads().values()) == 30
    assert "30 of 30 items checked: all as they should be" in capsys.readouterr().out


def test_verify_names_what_is_missing_changed_or_refused(filled, capsys):
    """Each as one JSON document with index and place, then a summary; status 1."""
    filled.build()
    filled.put("k01", b"other")
    filled.put("k02", b"9" * 100)
    filled.s3.delete("b", "k03")
    filled.s3.deny(CREDENTIALS.access_key_id, "b/k04")
    assert verify(filled, "--all", "--json") == 1
    *found, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert {(one["index"], one["key"], one["status"]) for one in found} == {
        (1, "k01", "changed"),
        (2, "k02", "changed"),
        (3, "k03", "missing"),
        (4, "k04", "refused"),
    }
    assert summary == {"checked": 30, "items": 30, "wrong": 4, "changed": 2, "missing": 1, "refused": 1}


def test_verify_of_a_sample_reads_only_the_sample(filled):
    """A sample reads the requested number of items, and the same ones for the same seed."""
    filled.build()
    seen = []
    for _ in range(2):
        filled.s3.seen.clear()
        assert verify(filled, "--sample", "7", "--seed", "1") == 0
        seen.append(filled.reads())
    assert sum(seen[0].values()) == 7
    assert seen[0] == seen[1]


def test_verify_reads_parts_of_objects(store, capsys):
    """Items inside an object are compared by their ranges; those behind a shortened object's end have changed."""
    body = bytes(range(200))
    store.put("k", body)
    store.build(items=lambda bucket, key, size, read: [(0, 50), (50, 50), (150, 50)])
    assert verify(store, "--all") == 0
    store.put("k", body[:120])
    assert verify(store, "--all", "--json") == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert [(one["index"], one["status"]) for one in found] == [(2, "changed")]


def test_verify_reads_items_of_unknown_length(store):
    """A null length is read to the object's end, from its offset on."""
    store.put("k", b"0123456789")
    rows = [(None, b"0123456789"), (4, b"456789"), (10, b"")]
    table = pa.table(
        {
            "digest": [hashlib.sha256(content).digest() for _, content in rows],
            "bucket": ["b"] * 3,
            "key": ["k"] * 3,
            "offset": [offset for offset, _ in rows],
            "length": pa.nulls(3, pa.int64()),
        }
    )
    pq.write_table(table, store.file)
    assert verify(store, "--all") == 0
    store.put("k", b"0123456789x")
    assert verify(store, "--all") == 1


def test_diff_of_equal_files_is_empty(filled, tmp_path, capsys):
    """Status 0."""
    filled.build()
    copy = tmp_path / "copy"
    copy.write_bytes(filled.file.read_bytes())
    assert cli.main(["digest", "diff", str(filled.file), str(copy)]) == 0
    assert capsys.readouterr().out == "30 same, 0 added, 0 removed, 0 changed\n"


def test_diff_names_what_was_added_removed_and_changed(filled, tmp_path, capsys):
    """One line or document for each, in the order of keys; status 1."""
    filled.build()
    before = tmp_path / "before"
    before.write_bytes(filled.file.read_bytes())
    filled.put("k1a", b"new")
    filled.put("k05", b"changed")
    filled.s3.delete("b", "k29")
    filled.build()
    assert cli.main(["digest", "diff", str(before), str(filled.file)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "~ s3://b/k05",
        "+ s3://b/k1a",
        "- s3://b/k29",
        "28 same, 1 added, 1 removed, 1 changed",
    ]
    assert cli.main(["digest", "diff", str(before), str(filled.file), "--json"]) == 1
    *found, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert found[0] == {"kind": "changed", "bucket": "b", "key": "k05", "offset": 0}
    assert summary == {"same": 28, "added": 1, "removed": 1, "changed": 1, "reordered": False, "equal": False}


def test_diff_notices_another_order(filled, tmp_path, capsys):
    """The same items in another order are another dataset."""
    filled.build()
    table = pq.read_table(filled.file)
    pq.write_table(table.take(list(range(len(table)))[::-1]), tmp_path / "turned")
    assert cli.main(["digest", "diff", str(filled.file), str(tmp_path / "turned")]) == 1
    assert "another order" in capsys.readouterr().out


def test_what_is_no_digest_file_exits_with_1(tmp_path, capsys):
    """Named, without a traceback."""
    (tmp_path / "f").write_bytes(b"PAR1 but no")
    for words in (["show", "f"], ["verify", "f"], ["diff", "f", "f"]):
        words = [str(tmp_path / word) if word == "f" else word for word in words]
        assert cli.main(["digest", *words]) == 1
        assert "not a complete Parquet file" in capsys.readouterr().err


def test_a_reader_who_leaves_early_is_no_error_message(filled):
    """`larder digest show --digests | head -1` prints a line and no traceback."""
    for number in range(3000):
        filled.put(f"more/{number}", b"")
    filled.build()
    shown = [sys.executable, "-m", "larder", "digest", "show", "--digests", str(filled.file)]
    with subprocess.Popen(shown, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        said = running.stderr.read()
    assert said == b""


def test_keys_are_printed_on_one_line(store, capsys):
    """A key with a newline or an escape sequence cannot paint on the terminal."""
    store.put("a\nb\x1b[31m", b"1")
    store.build()
    assert cli.main(["digest", "show", "--digests", str(store.file)]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_a_function_is_found_where_python_finds_it(store, tmp_path, monkeypatch):
    """`--index` imports a module of the user's."""
    (tmp_path / "halves.py").write_text("def items(bucket, key, size, read):\n    return [(0, size // 2)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    store.put("k", b"1234")
    assert cli.main(command(store, "--index", "halves:items")) == 0
    assert store.items() == {("k", 0, 2): hashlib.sha256(b"12").digest()}


def test_checksums_of_the_store_are_mentioned(store, capsys):
    """The summary counts the objects that were not read because the store knew their hash."""
    store.put("k", b"1", x_amz_checksum_sha256=base64.b64encode(hashlib.sha256(b"1").digest()).decode())
    assert cli.main(command(store)) == 0
    assert "1 with a checksum of the store's" in capsys.readouterr().out


def test_nothing_of_a_build_stays_in_the_directory(filled: Store, tmp_path: Path):
    """A build leaves neither a journal nor a temporary file."""
    assert cli.main(command(filled)) == 0
    assert os.listdir(filled.file.parent) == [filled.file.name]
