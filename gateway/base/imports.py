"""Imports modules that stay until the process ends."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType


def imported(module: str) -> ModuleType:
    """Import a module with garbage collection disabled: scanning growing, permanent data costs a quarter of a gateway's start.
    The imported objects are exempt from later collections, too. What another thread is importing is waited for."""
    if module in sys.modules:
        return import_module(module)
    collects = gc.isenabled()
    gc.disable()
    try:
        loaded = import_module(module)
        gc.freeze()
        return loaded
    finally:
        if collects:
            gc.enable()
