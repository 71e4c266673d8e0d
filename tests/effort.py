"""Numbers of examples for property tests: few in `make test`, fifty times as many in `make fuzz`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_USUAL = 100
"""Examples of a property in `make test`, unless it says how many."""


def examples(count: int) -> int:
    """The number of examples for which `make test` takes ``count``."""
    return count * settings.default.max_examples // _USUAL


def same_each_time(count: int) -> settings:
    """The settings of a property that asks a running gateway: `make test` tries the same ``count`` examples each time."""
    usual = settings.default.max_examples == _USUAL
    return settings(max_examples=examples(count), derandomize=usual, suppress_health_check=list(HealthCheck))
