"""Training by importance in the simulator: closed forms, the bound h - c, invalid scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gateway.cli import main
from gateway.model.errors import ConfigError
from gateway.sim.importance.importance import ScoreRunResult, closed_form, simulate_scores
from gateway.sim.importance.score_scenario import ScoreScenario
from gateway.sim.jobs.scenario import parse_as

ITEMS = 300


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Losses of 300 items in 12 epochs: some items stay hard, the others get easier."""
    rng = np.random.default_rng(5)
    hard = rng.gamma(2.0, 1.0, ITEMS)
    losses = hard[None, :] / np.arange(1, 13)[:, None] ** 0.5 + rng.random((12, ITEMS)) / 10
    path = tmp_path / "losses.npz"
    np.savez(path, losses=losses.astype(np.float16))
    return path


def text(trace: Path, *runs: dict[str, object], **head: object) -> str:
    """A scenario."""
    lines = [
        f"{name} = {json.dumps(value)}"
        for name, value in {"title": "t", "trace": str(trace), "batch": 20, **head}.items()
    ]
    for run in runs:
        lines += ["[[runs]]", *(f"{name} = {json.dumps(value)}" for name, value in run.items())]
    return "\n".join(lines)


def simulated(trace: Path, share: float, **run: object) -> ScoreRunResult:
    """One run with one size of the cache."""
    scenario = text(trace, {"name": "r", **run}, shares=[share], warm_up=4)
    (result,) = simulate_scores(parse_as(ScoreScenario, scenario, "test"))
    return result


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize(("cache", "within"), [("lru", 0.02), ("never-evict", 1e-9), ("min", 0.01)])
def test_uniform_orders_hit_what_theory_says(trace: Path, cache: str, share: float, within: float) -> None:
    """Rule: reading each item once per epoch, LRU hits c + (1 - c) ln(1 - c), never evicting and MIN hit c; no item is unseen."""
    found = simulated(trace, share, sampler="uniform", cache=cache)
    theory = closed_form(found.run, share)
    assert theory is not None
    assert found.hits == pytest.approx(theory, abs=within)
    assert (found.unseen, found.ahead) == (0, 0)


@pytest.mark.parametrize("unseen", [0.0, 0.3, 0.6])
def test_a_list_leaves_out_what_it_may_and_hits_what_that_allows(trace: Path, unseen: float) -> None:
    """Rule: exactly u is unseen, and a cache of the list's repeats hits nearly c + u, never more."""
    found = simulated(trace, 0.25, sampler="shade", cache="importance", unseen=unseen, prefetch=True)
    assert found.unseen == pytest.approx(unseen)
    assert 0.25 + unseen - 0.06 <= found.hits <= 0.25 + unseen + found.ahead


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_residency_by_need_reads_nearly_the_least(trace: Path, share: float) -> None:
    """Rule: with half unseen and 20 % cached, loads and misses are within 0.04 of the least, 1 - c - u; with 10 %, which does not
    hold what the list repeats, they are half. An LRU cache reads half as much again."""
    by_need = simulated(trace, share, sampler="shade", cache="importance", unseen=0.5, prefetch=True)
    lru = simulated(trace, share, sampler="shade", cache="lru", unseen=0.5)
    assert by_need.read + by_need.ahead <= {0.1: 0.50, 0.2: 0.34}[share]
    assert lru.read > 1.5 * (by_need.read + by_need.ahead)


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_mini_batches_miss_alike(trace: Path, share: float) -> None:
    """Rule: with half unseen, a mini-batch's misses deviate by less than one; an order that does not know the cache varies by
    more. With a fifth cached they deviate less than those of LRU, of which an epoch's first ones hit what was read last; with a
    tenth LRU hits almost nothing, so it deviates least."""
    even = simulated(trace, share, sampler="shade", cache="importance", unseen=0.5, prefetch=True)
    lru = simulated(trace, share, sampler="uniform", cache="lru")
    unknown = simulated(trace, share, sampler="shade", cache="lru", unseen=0.5)
    assert even.deviation < 1
    assert (even.deviation < lru.deviation) == (share == 0.2)
    assert unknown.deviation > 1.3 * even.deviation


def test_jobs_of_different_interests_share_the_cache(trace: Path) -> None:
    """Rule: two jobs with other hard items each read less by the sum of their needs than by LRU, both about as much."""
    both = simulated(trace, 0.2, sampler="shade", cache="importance", unseen=0.5, prefetch=True, jobs=2)
    lru = simulated(trace, 0.2, sampler="shade", cache="lru", unseen=0.5, jobs=2)
    assert both.read + both.ahead < 0.7 * lru.read
    assert max(both.by_job) - min(both.by_job) < 0.1
    assert both.unseen == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("sampler", "cache", "prefetch"),
    [
        ("coarse", "lru", False),
        ("coarse", "lfu", False),
        ("coarse", "random", False),
        ("coarse", "pq", False),
        ("coarse", "pq-lfu", False),
        ("coarse", "app", False),
        ("shade", "importance", True),
    ],
)
def test_no_cache_hits_more_than_it_leaves_unseen(trace: Path, sampler: str, cache: str, prefetch: bool) -> None:
    """Rule: for every sampler and cache, at least h - c is unseen; items loaded ahead count as misses."""
    for share in (0.1, 0.5):
        found = simulated(trace, share, sampler=sampler, cache=cache, prefetch=prefetch)
        assert found.hits + found.read == pytest.approx(1)
        assert found.unseen >= found.bound
        assert found.hits > share * 0.8


def test_without_a_cache_everything_is_read(trace: Path) -> None:
    """Rule: without a cache there are no hits."""
    found = simulated(trace, 0.0, sampler="shade", cache="importance", prefetch=True)
    assert (found.hits, found.ahead, found.read) == (0, 0, 1)


@pytest.mark.parametrize(
    ("run", "field"),
    [
        ({"sampler": "uniform", "cache": "app"}, "runs: r: the sampler uniform has no scores"),
        ({"sampler": "shade", "cache": "min"}, "min needs uniform"),
        ({"sampler": "shade", "cache": "magic"}, "runs[0].cache"),
        ({"sampler": "shade", "cache": "lru", "unseen": 1.0}, "runs[0].unseen"),
        ({"sampler": "coarse", "cache": "lru", "unseen": 0.5}, "runs: r: only lists of the sampler shade"),
        ({"sampler": "coarse", "cache": "pq", "jobs": 2}, "runs: r: the cache pq is of one job"),
    ],
)
def test_a_wrong_scenario_names_the_field(trace: Path, run: dict[str, object], field: str) -> None:
    """Rule: an impossible scenario is refused, naming its place in the file."""
    with pytest.raises(ConfigError) as refused:
        parse_as(ScoreScenario, text(trace, {"name": "r", **run}, shares=[0.1]), "test")
    assert field in str(refused.value)


def test_a_trace_that_is_none_is_refused(tmp_path: Path, trace: Path) -> None:
    """Rule: a file that is missing, no NPZ, or too short is named."""
    wrong = {"gone": None, "other": b"no archive", "empty": b"", "cut": trace.read_bytes()[:100]}
    for name, content in wrong.items():
        if content is not None:
            (tmp_path / f"{name}.npz").write_bytes(content)
    for path, warm_up in (*((tmp_path / f"{name}.npz", 1) for name in wrong), (trace, 12)):
        scenario = text(path, {"name": "r", "sampler": "shade", "cache": "lru"}, shares=[0.1], warm_up=warm_up)
        with pytest.raises(ConfigError, match=r"trace|warm_up"):
            simulate_scores(parse_as(ScoreScenario, scenario, "test"))


def test_the_command_prints_tables_and_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: `simulate` takes such a scenario like any other."""
    run = {"name": "SHADE", "sampler": "shade", "cache": "importance", "unseen": 0.5}
    path = tmp_path / "scenario.toml"
    path.write_text(text(trace, run, shares=[0.25]))
    assert main(["simulate", str(path)]) == 0
    assert "SHADE" in capsys.readouterr().out
    assert main(["simulate", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert (found["name"], found["unseen"], found["closed_form"]) == ("SHADE", 0.5, 0.75)
