"""Custom ways of caching: the function of a run whose mode is ``"module:function"`` makes them.

So an idea can be compared with the others before a line of Larder is changed (docs/adding-a-policy.md). The module is imported
as any other, from ``PYTHONPATH``, and runs with the rights of the user who simulates: a scenario is a program, not a document.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from gateway.model.errors import ConfigError
from gateway.sim.clock import Clock
from gateway.sim.items import SimulatedSpace
from gateway.sim.job import JobRun, Way

MakeWay = Callable[[SimulatedSpace, Clock, Sequence[JobRun]], Way]
"""Makes a way of caching, for one run: of its space, its time and its jobs, which are added to the list afterwards."""


def own_way(name: str) -> MakeWay:
    """The function of that name, written ``"module:function"``.

    Raises:
        ConfigError: there is none.
    """
    module, _, function = name.partition(":")
    try:
        found: MakeWay = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f'runs: mode = "{name}" is no function that can be imported ({error}); is its folder in PYTHONPATH?'
        ) from error
    return found
