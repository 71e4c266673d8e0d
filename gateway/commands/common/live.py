"""A screen of a terminal that is refreshed until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

from gateway.commands.common.output import console, line


class _Screenful(StringIO):
    """Takes what is printed for a terminal."""

    def isatty(self) -> bool:
        """It has the terminal's colours and width."""
        return True


def refresh(show: Callable[[], object], every: float) -> None:
    """Print what ``show`` prints again and again, as much as fits on the terminal, ``every`` so many seconds."""
    paper = console()
    with paper.screen():
        while True:
            with redirect_stdout(_Screenful()) as printed:
                show()
            # A line more than the terminal has would scroll the first one away.
            paper.clear()
            line("\n".join(printed.getvalue().splitlines()[: paper.height - 1]))
            time.sleep(every)
