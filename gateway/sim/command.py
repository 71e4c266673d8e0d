"""``larder-gateway simulate``: prints a scenario's table, and draws its pictures into files."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from gateway.model.errors import LarderError
from gateway.sim.figures import PlotsUnavailable
from gateway.sim.jobs.scenario import Scenario, built_in, kind_of, parse_as, scenario_text


class PlannerUnavailable(LarderError):
    """The client, whose planner the simulator uses, is not installed."""


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    command.description = (
        "Run jobs, or clients that read plain objects, a cache and an origin under a virtual clock, with the gateways' own "
        "policies and the loader's planner.\n\n"
        f"Built-in scenarios: {', '.join(built_in())}. docs/evaluation/scenarios.md says how to write one."
    )
    command.epilog = (
        "examples:\n"
        "  larder-gateway simulate multi-job --out plots\n"
        "  larder-gateway simulate my-scenario.toml --seed 2 --json"
    )
    command.add_argument("scenario", metavar="SCENARIO", help="TOML file, or the name of a built-in scenario")
    command.add_argument("--seed", metavar="N", type=_seed, help="random numbers; instead of the scenario's")
    command.add_argument("--out", metavar="DIR", type=Path, help="write the plots (PNG) of jobs into this directory")
    command.add_argument("--json", action="store_true", help="print everything that was measured as JSON")
    command.set_defaults(run=run)


def _seed(text: str) -> int:
    seed = int(text)
    if seed < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return seed


def run(options: argparse.Namespace) -> int:
    """Simulate and print.

    Raises:
        ConfigError: the scenario is invalid.
        PlannerUnavailable: the client is not installed; the message says how to get it.
    """
    try:
        from gateway.sim.importance.importance import simulate_scores
        from gateway.sim.importance.score_report import scores_as_json, scores_as_text
        from gateway.sim.importance.score_scenario import ScoreScenario
        from gateway.sim.jobs.report import as_json, as_text
        from gateway.sim.jobs.run import simulate
        from gateway.sim.plots import draw
        from gateway.sim.streams.read_report import reads_as_json, reads_as_text
        from gateway.sim.streams.read_scenario import ReadScenario
        from gateway.sim.streams.transparent import simulate_reads
    except ImportError as error:
        raise PlannerUnavailable(
            f"no simulation without the client, whose planner it runs ({error}); pip install ./clients/python in a clone"
        ) from error
    kinds: dict[str, tuple[Any, Any, Any, Any]] = {
        "jobs": (Scenario, simulate, as_text, as_json),
        "reads": (ReadScenario, simulate_reads, reads_as_text, reads_as_json),
        "scores": (ScoreScenario, simulate_scores, scores_as_text, scores_as_json),
    }
    text = scenario_text(options.scenario)
    model, simulated, table, runs = kinds[kind_of(text)]
    scenario = parse_as(model, text, options.scenario)
    results = simulated(scenario, options.seed)
    if options.json:
        print(json.dumps({"scenario": scenario.title, "runs": runs(scenario, results)}, indent=1))
    else:
        print(table(scenario, results))
    if options.out is not None and isinstance(scenario, Scenario):
        try:
            for path in draw(scenario, results, options.out, Path(options.scenario).stem):
                print(f"wrote {path}", file=sys.stderr)
        except PlotsUnavailable as error:
            print(error, file=sys.stderr)
        except OSError as error:
            print(f"larder-gateway: {options.out}: {error.strerror}", file=sys.stderr)
            return 1
    return 0
