"""The command ``larder-gateway simulate``."""

import json
import sys

import pytest

from gateway.cli import main
from tests.sim.conftest import dataset, job, run, scenario


@pytest.fixture
def file(tmp_path):
    """A small scenario as a file."""
    path = tmp_path / "small.toml"
    tables = (
        dataset("d", "4GB"),
        job("fast", "d", count=2),
        job("late", "d", start=20),
        run("none", "none"),
        run("larder", "larder", caching="part", capacity="1GB"),
        run("lru", "lru", capacity="1GB"),
    )
    path.write_text(scenario(*tables, duration=120))
    return path


def test_it_prints_a_table(file, capsys):
    """Rule: a row per run and kind of job, with its gain over no cache."""
    assert main(["simulate", str(file)]) == 0
    text = capsys.readouterr().out
    assert "a test" in text
    assert "speedup" in text
    assert "(25%)" in text


def test_json_is_the_same_for_the_same_seed(file, capsys):
    """Rule: ``--json`` gives everything that was measured; only another seed gives something else."""
    printed = []
    for seed in ("1", "1", "2"):
        assert main(["simulate", str(file), "--json", "--seed", seed]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]
    assert printed[0] != printed[2]
    # What is being read at the end has replaced others already.
    assert 0.2 <= printed[0]["runs"][1]["shares"]["d"] <= 0.25


def test_plots_are_written(file, tmp_path, capsys):
    """Rule: ``--out`` writes PNG files into a directory that need not exist."""
    assert main(["simulate", str(file), "--out", str(tmp_path / "new" / "plots")]) == 0
    names = {path.name for path in (tmp_path / "new" / "plots").glob("*.png")}
    assert names == {"small-progress.png", "small-speedup.png"}


def test_without_matplotlib_it_says_how_to_get_it(file, tmp_path, capsys, monkeypatch):
    """Rule: the table needs no matplotlib; plots do, and the message has the remedy."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["simulate", str(file), "--out", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr()
    assert "larder-gateway[plots]" in printed.err
    assert "speedup" in printed.out


def test_without_the_client_it_says_how_to_get_it(file, capsys, monkeypatch):
    """Rule: the simulator runs the client's planner, so a gateway alone cannot simulate; the message has the remedy."""
    for name in [
        name
        for name in sys.modules
        if name.startswith(("gateway.sim.jobs.run", "gateway.sim.plots", "gateway.sim.jobs.job"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "larder", None)
    monkeypatch.setitem(sys.modules, "larder.planner", None)
    assert main(["simulate", str(file)]) == 1
    assert "pip install ./clients/python" in capsys.readouterr().err


def test_a_wrong_scenario_is_refused_by_the_name_of_the_field(file, capsys):
    """Rule: exit status 2, as for every wrong configuration."""
    file.write_text(file.read_text().replace("gpus = 4", "gpus = -4"))
    assert main(["simulate", str(file)]) == 2
    assert "jobs[0].gpus" in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_an_error(file, tmp_path, capsys):
    """Rule: an unwritable directory is reported in one line, by its name."""
    (tmp_path / "taken").write_text("")
    assert main(["simulate", str(file), "--out", str(tmp_path / "taken")]) == 1
    assert "taken" in capsys.readouterr().err
