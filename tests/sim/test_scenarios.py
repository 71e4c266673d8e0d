"""Scenario files: the built-in ones are sound, wrong ones are refused by the name of the field."""

import pytest

from gateway.model.errors import ConfigError
from gateway.sim.importance.score_scenario import ScoreScenario
from gateway.sim.jobs.scenario import (
    Scenario,
    built_in,
    kind_of,
    parse_as,
    scenario_text,
)
from gateway.sim.streams.read_scenario import ReadScenario
from tests.sim.conftest import dataset, job, run, scenario

GOOD = scenario(dataset("d", "1GB"), job("j", "d"), run("none", "none"), run("larder", "larder"))


@pytest.mark.parametrize("name", built_in())
def test_a_built_in_scenario_is_sound(name):
    """Rule: every built-in scenario runs by its name."""
    text = scenario_text(name)
    kinds = {"jobs": Scenario, "reads": ReadScenario, "scores": ScoreScenario}
    assert parse_as(kinds[kind_of(text)], text, name).runs


def test_those_of_the_paper_are_built_in():
    """Rule: the paper's experiments can be named."""
    assert {"quiver-table3", "quiver-figure6", "quiver-figure7", "igtcache-table3", "multi-job"} <= set(built_in())


@pytest.mark.parametrize(
    ("wrong", "right", "field"),
    [
        ('dataset = "d"', 'dataset = "other"', "jobs: j: there is no dataset 'other'"),
        ("gpus = 4", "gpus = 0", "jobs[0].gpus"),
        ("gpus = 4", "gpu = 4", "jobs[0].gpu"),
        ("compute = 0.6", "compute = -1", "jobs[0].compute"),
        ("miss = 2.4", "miss = 0.1", "jobs[0]: miss must be more than compute"),
        ('batch = "40MB"', 'batch = "40 parsecs"', "jobs[0].batch"),
        ('batch = "40MB"', 'batch = "2GB"', "jobs: j: batch is larger than the dataset"),
        ('capacity = "2GB"', "capacity = 0", "fleet.capacity"),
        ("interval = 1", 'interval = "sometimes"', "manager.interval"),
        ('bandwidth = "10GB"', "", "origin.bandwidth"),
        ("measure_from = 0", "measure_from = 1000", "measure_from must be less than duration"),
        ('mode = "larder"', 'mode = "magic"', "runs[1].mode"),
        ('name = "larder"', 'name = "none"', "runs: the name 'none' comes twice"),
        ('item = "10MB"', "item = 1", "datasets[0]: 1000000000 items are more than"),
        ('title = "a test"', "title = ", "is not TOML"),
    ],
)
def test_a_wrong_scenario_is_refused_by_the_name_of_the_field(wrong, right, field):
    """Rule: the message names the field, as the file has it."""
    assert wrong in GOOD
    with pytest.raises(ConfigError) as refused:
        parse_as(Scenario, GOOD.replace(wrong, right, 1))
    assert field in str(refused.value)


def test_a_mistake_in_a_list_is_told_once():
    """Rule: a list with one wrong table is not reported as too short as well; an empty one is."""
    with pytest.raises(ConfigError) as refused:
        parse_as(Scenario, GOOD.replace('mode = "larder"', 'mode = "magic"').replace('mode = "none"', 'mode = "more"'))
    assert "at least 1 item" not in str(refused.value)
    assert str(refused.value).count("mode") == 2
    with pytest.raises(ConfigError, match=r"runs: .*at least 1 item"):
        parse_as(Scenario, GOOD.partition("[[runs]]")[0].replace("[origin]", "runs = []\n[origin]", 1))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    """Rule: the message names the file."""
    (tmp_path / "picture.toml").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ConfigError, match=r"picture\.toml"):
        scenario_text(str(tmp_path / "picture.toml"))


def test_what_is_no_scenario_is_refused_with_those_that_there_are():
    """Rule: the remedy is in the message."""
    with pytest.raises(ConfigError, match="quiver-table3"):
        scenario_text("no-such-scenario")
