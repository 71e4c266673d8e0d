"""The entry point of the demo, cheap to import: `larder-gateway serve` imports it and does not need scikit-learn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec

from gateway.demo.interrupts import Interrupts
from gateway.demo.processes import DemoFailed
from gateway.demo.table import console

GATEWAY_COMMAND = (sys.executable, "-m", "gateway", "serve")
EXTRA = ("boto3", "moto", "sklearn", "PIL")
TRAINING = ("torch", "larder", "pyarrow")
FAILED = 1
INTERRUPTED = 130


def run_demo(
    *, keep: bool = False, port: int = 0, training: bool = True, command: Sequence[str] = GATEWAY_COMMAND
) -> int:
    """Start an origin and a gateway, demonstrate the gateway, and remove everything.

    Args:
        keep: leave everything running after the tables, until Ctrl-C.
        port: of the gateway; 0 picks a free port.
        training: whether to train a network at the end.
        command: starts a gateway; ``--config FILE`` is appended.

    Returns:
        The exit code: 0, 1 if a claim did not hold or a package is missing, 130 after Ctrl-C.
    """
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        return _lacking(missing, "pip install 'larder-gateway[demo]'")
    if training and (missing := [name for name in TRAINING if find_spec(name) is None]):
        return _lacking(
            missing, "install larder-gateway[demo] and larder[digest,torch], or leave it out with --no-train"
        )
    return attempt(
        "The demo", lambda *parts: import_module("gateway.demo.course").take(keep, port, training, command, *parts)
    )


def attempt(name: str, take: Callable[[ExitStack, Interrupts], None]) -> int:
    """Run a demo, and remove everything that it pushed on its stack; returns the exit code.

    Args:
        name: of the demo, for messages.
        take: runs it. It imports the demo's modules, because that takes a second or two, and Ctrl-C is handled by then.
    """
    try:
        with Interrupts() as interrupts, ExitStack() as stack:
            try:
                take(stack, interrupts)
            finally:
                interrupts.ignore()
    except DemoFailed as failure:
        console.print(f"\n{name} failed: {failure}", style="bold red", markup=False)
        return FAILED
    except KeyboardInterrupt:
        console.print("\nstopped; nothing is left running", style="dim")
        return INTERRUPTED
    return 0


def _lacking(missing: Sequence[str], remedy: str) -> int:
    console.print(f"The demo also needs {', '.join(missing)}: {remedy}", style="red", markup=False, soft_wrap=True)
    return FAILED
