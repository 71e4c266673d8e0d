"""A gateway that reports the file calls of its event loop in one directory: ``python -m tests.scenarios.loop_guard serve ...``.

A call on a hung disk does not return, so the loop must make none. Python's audit events (PEP 578) show most calls; the
others are wrapped. ``GUARDED`` names the directory, ``GUARD_REPORT`` the file for the stacks.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from gateway.cli import main

_NAMES = ("listdir", "scandir", "remove", "rename", "mkdir", "rmdir", "link", "truncate", "utime")
_EVENTS = frozenset(("open", "sqlite3.connect", *(f"os.{name}" for name in _NAMES)))
_SILENT = ("stat", "lstat", "statvfs", "access")


def guard(directory: str, report: str) -> None:
    """Report from now on."""

    def look(what: str, path: Any) -> None:
        if threading.current_thread() is not threading.main_thread() or asyncio._get_running_loop() is None:
            return
        if not isinstance(path, str | bytes | os.PathLike):
            return
        if directory in os.fsdecode(path):
            with open(report, "a") as file:
                file.write(f"{what} {os.fsdecode(path)}\n{''.join(traceback.format_stack(limit=9)[:-1])}\n")

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any, *args: Any, **more: Any) -> Any:
            look(name, path)
            return call(path, *args, **more)

        return ask

    for name in _SILENT:
        setattr(os, name, wrapped(name, getattr(os, name)))
    sys.addaudithook(lambda event, args: look(event, args[0]) if event in _EVENTS else None)


if __name__ == "__main__":
    guard(os.environ["GUARDED"], os.environ["GUARD_REPORT"])
    sys.exit(main())
