"""Scenarios small enough for a test, as text."""

from collections.abc import Callable

import pytest

from gateway.sim.jobs.run import RunResult, simulate
from gateway.sim.jobs.scenario import Scenario, parse_as

HEAD = """
title = "a test"
duration = {duration}
measure_from = {measure_from}

[origin]
bandwidth = "{bandwidth}"
sharing = "{sharing}"
{origin}

[fleet]
capacity = "{capacity}"

[manager]
interval = {interval}
probe_batches = {probe_batches}
probe_every = "1d"
"""
DEFAULTS = {
    "duration": 1000,
    "measure_from": 0,
    "bandwidth": "10GB",
    "sharing": "fair",
    "origin": "",
    "capacity": "2GB",
    "interval": 1,
    "probe_batches": 0,
}


def dataset(name: str, size: str, item: str = "10MB", caching: str = "auto") -> str:
    """A table of a scenario."""
    return f'[[datasets]]\nname = "{name}"\nsize = "{size}"\nitem = "{item}"\ncaching = "{caching}"\n'


def job(name: str, of: str, **options: object) -> str:
    """A table of a scenario: a job that takes 0.6 s for a mini-batch from the cache and 2.4 s for one from the origin."""
    options = {"batch": "40MB", "compute": 0.6, "miss": 2.4, "gpus": 4, **options}
    return f'[[jobs]]\nname = "{name}"\ndataset = "{of}"\n' + _lines(options)


def run(name: str, mode: str, **options: object) -> str:
    """A table of a scenario."""
    return f'[[runs]]\nname = "{name}"\nmode = "{mode}"\n' + _lines(options)


def _lines(options: dict[str, object]) -> str:
    return "".join(f"{name} = {_value(value)}\n" for name, value in options.items())


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def scenario(*tables: str, **head: object) -> str:
    """A whole scenario; ``head`` over the defaults."""
    return HEAD.format(**{**DEFAULTS, **head}) + "\n".join(tables)


Simulated = Callable[..., dict[str, RunResult]]


@pytest.fixture
def simulated() -> Simulated:
    """Parse and run: the results by the names of the runs."""

    def give(*tables: str, **head: object) -> dict[str, RunResult]:
        return {result.run.name: result for result in simulate(parse_as(Scenario, scenario(*tables, **head)))}

    return give
