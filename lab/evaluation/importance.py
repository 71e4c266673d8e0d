"""Training by importance: hits of caches, compared with what theory allows and with what an epoch leaves unseen."""

from __future__ import annotations

from gateway.sim.importance.importance import simulate_scores
from gateway.sim.importance.score_report import COLUMNS, scores_table
from gateway.sim.importance.score_scenario import ScoreScenario
from gateway.sim.jobs.scenario import parse_as, scenario_text
from lab.evaluation.pages import machine, numbers, record

SCENARIO = "shade-figure7"
SHOWN = (0.1, 0.2, 0.5)
"""Cached shares that the page shows."""
IN_FILE = ("LFU", "random", "sh_lfu", "sh_rand", "sh_pq", "sh_pqlfu", "unseen 0", "unseen 0.1")
"""Runs that only the file beside the page shows."""
READERS = {
    "two": "unseen 0.5 - 2 jobs",
    "alone": "unseen 0.5",
    "two with LRU": "unseen 0.5 in LRU - 2 jobs",
    "two shuffles": "LRU - 2 jobs",
}
"""Runs of which the page compares the origin's reads, with a fifth cached."""


def run() -> None:
    """Measure all of it, and write the section."""
    where = machine()
    scenario = parse_as(ScoreScenario, scenario_text(SCENARIO), SCENARIO)
    results = simulate_scores(scenario)
    rows = [[f"{share:.0%}", *row] for share in scenario.shares for row in scores_table(results, share)[1]]
    numbers("importance", ["cache", *COLUMNS], rows)
    of = {(result.run.name, result.share): result for result in results}
    runs = {
        name: {"hits": [of[name, share].hits for share in SHOWN], "unseen": of[name, scenario.shares[0]].unseen}
        for name, _ in of
        if name not in IN_FILE
    }
    reads = {readers: of[name, 0.2].read + of[name, 0.2].ahead for readers, name in READERS.items()}
    data = {
        "text": scenario.text.strip(),
        "shown": SHOWN,
        "runs": runs,
        "static_by_lru": of["never evict", 0.1].hits / of["LRU", 0.1].hits,
        "reads_of_all": of["unseen 0", 0.1].read + of["unseen 0", 0.1].ahead,
        "reads": reads,
        "hits_of_two": of[READERS["two"], 0.2].by_job,
    }
    record("evaluation/importance/importance", {"where": where, **data})
