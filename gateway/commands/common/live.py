"""A terminal screen that is refreshed until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

from gateway.commands.common.output import console, line


class _Screenful(StringIO):
    """Collects text printed for a terminal."""

    def isatty(self) -> bool:
        """True, so that the text has the terminal's colours and width."""
        return True


def refresh(show: Callable[[], object], every: float) -> None:
    """Repeat the output of ``show`` every ``every`` seconds, as much as fits on the terminal."""
    paper = console()
    with paper.screen():
        while True:
            with redirect_stdout(_Screenful()) as printed:
                show()
            # One line too many would scroll the first one away.
            paper.clear()
            line("\n".join(printed.getvalue().splitlines()[: paper.height - 1]))
            time.sleep(every)
