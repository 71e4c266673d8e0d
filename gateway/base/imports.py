"""Imports modules that stay until the process ends."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType


def imported(module: str) -> ModuleType:
    """Import a module with garbage collection disabled: scanning growing, permanent data costs a quarter of a gateway's start.
    The imported objects are exempt from later collections, too."""
    if module in sys.modules:
        return sys.modules[module]
    collects = gc.isenabled()
    gc.disable()
    try:
        loaded = import_module(module)
        gc.freeze()
        return loaded
    finally:
        if collects:
            gc.enable()
