"""``larder estimate``, and the sizes that it reads and shows."""

import json

import pytest
from fake_gateway import ID, FakeBatchGateway, Store, serving

from larder import cli
from larder.base.sizes import format_size, parse_size
from larder.planner.expected import expected_reads

INFO = {"name": "digits", "id": ID, "items": 1000, "bytes": 10**9, "caching": "auto", "plan": 1, "resident": 0}


def test_all_jobs_together_read_what_is_not_held():
    """Of a dataset that is held by half, jobs read the other half once, however many they are."""
    for jobs in (1, 4):
        expected = expected_reads(1000, 10**9, 10**9 / 2 / 0.989, jobs)
        assert (expected.held, expected.reads, expected.uncached) == (
            pytest.approx(0.5),
            pytest.approx(500),
            1000 * jobs,
        )


def test_a_dataset_that_fits_is_not_read_again():
    """With room for all of it, and with more."""
    for capacity in (1.02e9, 1e12):
        assert expected_reads(1000, 10**9, capacity).reads == expected_reads(1000, 10**9, capacity).by_path == 0


def test_reads_through_lru():
    """(1 - c)(1 - ln(1 - c)), as docs/capacity.md has it."""
    assert expected_reads(1000, 10**9, 10**9 / 2 / 0.989).by_path == pytest.approx(846.6, abs=0.1)


def test_a_dataset_that_is_not_there_yet(capsys):
    """Items and bytes are enough: no gateway is asked."""
    assert cli.main(["estimate", "--items", "1000", "--bytes", "1GB", "--cache", "505.6MB", "--jobs", "4"]) == 0
    title, heading, row = capsys.readouterr().out.splitlines()
    assert title == "1,000 items, 1.0 GB, 4 jobs; each epoch from the second on:"
    assert heading.split() == ["CACHE", "HELD", "READS", "BYTES", "WITHOUT"]
    assert " ".join(row.split()) == "505.6 MB 50.0% 500 500.0 MB 4,000"


def test_sizes_of_caches_are_proposed(capsys):
    """Without --cache there are rows up to a cache that holds the dataset whole."""
    assert cli.main(["estimate", "--items", "1000", "--bytes", "1GB", "--json"]) == 0
    caches = json.loads(capsys.readouterr().out)["caches"]
    assert [round(row["held"], 2) for row in caches] == [0.2, 0.5, 0.8, 1.0]
    assert [round(row["reads"]) for row in caches] == [800, 500, 200, 0]


def test_a_registered_dataset(monkeypatch, capsys):
    """Its size is asked from the gateway."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "GWA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with serving(FakeBatchGateway(Store({}))) as server:
        server.other = lambda handler, asked: handler.send_json(INFO)
        assert cli.main(["estimate", "digits", "--endpoint", server.endpoint]) == 0
    assert capsys.readouterr().out.startswith("1,000 items, 1.0 GB, 1 jobs")


@pytest.mark.parametrize("words", [[], ["--items", "5"], ["--bytes", "5"], ["--items", "5", "--bytes", "0"]])
def test_no_dataset(words, capsys):
    """Wrong usage, with what to give."""
    assert cli.main(["estimate", *words]) == 2
    assert capsys.readouterr().err.startswith("larder: ")


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("1.5kB", 1500), ("40GB", 40 * 10**9), ("4MiB", 4 << 20), ("2 tb", 2 * 10**12)]
)
def test_sizes_are_read(text, size):
    """Decimal units, and binary ones with an i."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "4 parsecs", "1e3"])
def test_what_is_no_size(text, capsys):
    """It is refused with examples."""
    with pytest.raises(ValueError, match="examples"):
        parse_size(text)


def test_sizes_are_shown():
    """In decimal units, as the gateway's commands and console show them."""
    assert [format_size(n) for n in (0, 999, 1500, 3 * 10**9)] == ["0 B", "999 B", "1.5 kB", "3.0 GB"]
