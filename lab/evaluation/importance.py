"""Training by importance: hits of caches, compared with what theory allows and with what an epoch leaves unseen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.sim.importance.importance import ScoreRunResult, simulate_scores
from gateway.sim.importance.score_report import scores_table
from gateway.sim.importance.score_scenario import ScoreScenario
from gateway.sim.jobs.scenario import parse_as, scenario_text
from lab.evaluation.pages import machine, numbers, table, write_section

SCENARIO = "shade-figure7"
SHOWN = (0.1, 0.2, 0.5)
"""Cached shares that the page shows."""
IN_FILE = ("LFU", "random", "sh_lfu", "sh_rand", "sh_pq", "sh_pqlfu", "unseen 0", "unseen 0.1")
"""Runs that only the file beside the page shows."""


def run() -> None:
    """Measure all of it, and write the section."""
    where = machine()
    scenario = parse_as(ScoreScenario, scenario_text(SCENARIO), SCENARIO)
    results = simulate_scores(scenario)
    parts = [_intro(scenario), _hits(results, scenario.shares), _conclusions(results)]
    write_section("importance", "importance", "Simulated", where, *parts)


def _intro(scenario: ScoreScenario) -> str:
    return f"""
{scenario.text.strip()}

The simulator draws each epoch's list by scores and runs the gateway's orders and admission (`gateway/policies`) on it. The scores
follow the list; the losses do not, as the model of the trace was trained on all items alike. Runs `sh_*` draw with replacement by
the mean loss of an item's last mini-batch (the paper's coarse baselines). `SHADE` draws by ranks (Eq. 6), with replacement, and
keeps by importance. `unseen u` is the loader's list: all items but u once, and as many repeats of the most important ones.
Two jobs read in step; to the second, other items are hard. `larder-gateway simulate shade-figure7` runs it; other scenarios have
the fields of gateway/sim/importance/score_scenario.py.
"""


def _hits(results: Sequence[ScoreRunResult], shares: Sequence[float]) -> str:
    """Hits of each run by cached share; all other figures are in a file beside the page."""
    tables = {share: scores_table(results, share) for share in shares}
    columns = next(iter(tables.values()))[0]
    everything = numbers(
        "importance",
        ["cache", *columns],
        [[f"{share:.0%}", *row] for share, (_, rows) in tables.items() for row in rows],
    )
    rows = []
    for run in dict.fromkeys(one.run.name for one in results if one.run.name not in IN_FILE):
        of = {one.share: one for one in results if one.run.name == run}
        rows.append([run, *(f"{of[share].hits:.1%}" for share in SHOWN), f"{of[shares[0]].unseen:.0%}"])
    return f"Hits by the share of the items that is cached ({everything} has the rest):\n\n" + table(
        ["run", *(f"{share:.0%}" for share in SHOWN), "unseen"], rows
    )


def _conclusions(results: Sequence[ScoreRunResult]) -> str:
    def of(name: str, share: float) -> ScoreRunResult:
        return next(one for one in results if (one.run.name, one.share) == (name, share))

    lru, shade, most = of("LRU", 0.1), of("SHADE", 0.1), of("unseen 0.6", 0.2)
    exact, static = of("unseen 0", 0.1), of("never evict", 0.1)
    return f"""
- The paper's 4.5 times LRU at 10 % says little: never evicting has {static.hits / lru.hits:.0f} times as many hits, with nothing
  unseen. SHADE leaves {shade.unseen:.0%} unseen, as draws with replacement do by chance (1/e).
- 72.5 % at 20 % takes a list that leaves more than half unseen: {most.hits:.1%} with {most.unseen:.0%}. By the bound no cache
  does it with less than 52.5 %.
- Hits follow c + u while the cache holds what the list repeats. With 10 % and half unseen it does not.
- Loading ahead saves waiting, and takes only the place of items that the list does not draw: with nothing unseen there are
  {exact.read + exact.ahead:.1%} origin reads, as without evictions.
- {_two_jobs(of)}
"""


def _two_jobs(of: Callable[[str, float], ScoreRunResult]) -> str:
    def reads(name: str) -> str:
        return f"{of(name, 0.2).read + of(name, 0.2).ahead:.2f}"

    first, second = of("unseen 0.5 - 2 jobs", 0.2).by_job
    return (
        f"Two jobs of different interests with 20 % cached read {reads('unseen 0.5 - 2 jobs')} per entry, one job alone "
        f"{reads('unseen 0.5')}; the same lists through LRU {reads('unseen 0.5 in LRU - 2 jobs')}, shuffles through LRU "
        f"{reads('LRU - 2 jobs')}. They hit {first:.0%} and {second:.0%}."
    )
