"""Numbers of examples for property tests: few in `make test`, fifty times as many in `make fuzz`."""

from hypothesis import settings

_USUAL = 100
"""Examples of a property in `make test`, unless it says how many."""


def examples(count: int) -> int:
    """The number of examples for which `make test` takes ``count``."""
    return count * settings.default.max_examples // _USUAL
