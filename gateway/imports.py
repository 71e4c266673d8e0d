"""Importing what a process keeps until it ends."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType


def imported(module: str) -> ModuleType:
    """A module, imported without garbage collection: searching what stays, again and again while it grows, costs a quarter of
    a gateway's start. What it brings is not searched afterwards either."""
    if module in sys.modules:
        return sys.modules[module]
    collects = gc.isenabled()
    gc.disable()
    try:
        found = import_module(module)
        gc.freeze()
        return found
    finally:
        if collects:
            gc.enable()
