"""Training by importance: what caches hit under it, beside what theory allows and what an epoch leaves unseen."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.pages import machine, table, write
from evaluation.scenarios import fields
from gateway.sim.importance.importance import ScoreRunResult, simulate_scores
from gateway.sim.importance.score_report import scores_table
from gateway.sim.importance.score_scenario import ScoreRunSpec, ScoreScenario
from gateway.sim.jobs.scenario import parse_as, scenario_text

SCENARIO = "shade-figure7"


def run() -> None:
    """Measure all of it, and write the page."""
    where = machine()
    scenario = parse_as(ScoreScenario, scenario_text(SCENARIO), SCENARIO)
    results = simulate_scores(scenario)
    tables = []
    for share in scenario.shares:
        tables += [f"## A cache of {share:.0%}", table(*scores_table(results, share))]
    parts = [_intro(scenario), *tables, "## What follows", _conclusions(results), "## Writing a scenario", _reference()]
    write("importance", "Importance", where, *parts)


def _intro(scenario: ScoreScenario) -> str:
    return f"""
After *SHADE: Enable Fundamental Cacheability for Distributed Deep Learning Training* (FAST 2023), Figure 7.
{scenario.text.strip()}

The simulator draws each epoch's list by scores, and runs the gateway's orders and admission (`gateway/policies`) on it.
The scores follow the list, the losses do not: the model of the trace was trained on all items alike. So the tables say what
caches do with such lists. What the lists do to accuracy is measured with the loader.

- *hits*: reads that the cache answers. *origin reads*: misses, and what is *loaded ahead*. *unseen*: items that are not in
  the epoch's list.
- *theory*: of each item once per epoch LRU hits c + (1 - c) ln(1 - c); never evicting, and Belady's MIN, hit c. A list that
  leaves u unseen gives c + u, if the cache holds all items that it repeats (a third of u).
- *h - c*: with N reads of N items, a hit ratio h leaves at least h - c unseen; what is loaded ahead counts as a miss.
- Runs `sh_*` draw by the mean loss of an item's last mini-batch, with replacement (the paper's coarse baselines). `SHADE`
  draws by ranks (Eq. 6), with replacement, and keeps by importance. `unseen u` is the loader's list: all items but u once, and
  as many repeats of the most important ones. Both come from the loader's own planner.
"""


def _conclusions(results: Sequence[ScoreRunResult]) -> str:
    def of(name: str, share: float) -> ScoreRunResult:
        return next(one for one in results if (one.run.name, one.share) == (name, share))

    lru, shade, half, most = of("LRU", 0.1), of("SHADE", 0.1), of("unseen 0.5", 0.1), of("unseen 0.6", 0.2)
    exact, static, app, coarse = of("unseen 0", 0.1), of("never evict", 0.1), of("sh_app", 0.1), of("sh_lru", 0.1)
    return f"""
- The paper's 4.5 times LRU at 10 % says little here: LRU hits {lru.hits:.1%}, and never evicting
  {static.hits / lru.hits:.0f} times as much, with nothing unseen. SHADE with plain draws hits {shade.hits:.1%} and leaves
  {shade.unseen:.0%} unseen, as draws with replacement do by chance (1/e).
- 72.5 % at 20 % takes a list that leaves more than half unseen: {most.hits:.1%} with {most.unseen:.0%}. No cache does it with
  less than 52.5 %, the bound h - c.
- Hits follow c + u while the cache holds what the list repeats. With 10 % and half unseen there are {half.hits:.1%}: the list
  repeats more items than fit.
- Losses of mini-batches differ more than ranks do, so coarse draws have more repeats and hits ({app.hits:.1%} with sh_app,
  {coarse.hits:.1%} with sh_lru) and leave more unseen ({app.unseen:.0%}).
- Loading ahead moves reads and saves none: with nothing unseen there are {exact.read + exact.ahead:.1%} origin reads instead
  of {static.read:.1%}, as items leave for others that are read just as often. What it saves is waiting.
"""


def _reference() -> str:
    return (
        "`larder-gateway simulate` takes a TOML file with a `trace` too; `shade-figure7` is built in. "
        "`python -m evaluation.record_losses` records its trace again.\n\n"
        + fields([("", ScoreScenario), ("[[runs]]", ScoreRunSpec)])
    )
