"""The entry point: ``python -m gateway.demo.fleet [--keep] [--port N] [--nginx FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from gateway.demo.interrupts import Interrupts
from gateway.demo.processes import DemoFailed
from gateway.demo.table import console

NEEDED = ("boto3", "moto", "sklearn", "PIL", "larder", "pyarrow")
FAILED = 1
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Start a fleet, demonstrate it, and remove everything.

    Returns:
        The exit code: 0, 1 if a claim did not hold or a package is missing, 130 after Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        console.print(f"This also needs {', '.join(missing)}; `make fleet` installs them", style="red", markup=False)
        return FAILED
    try:
        with Interrupts() as interrupts, ExitStack() as stack:
            try:
                # Imported here, where Ctrl-C is handled already: the import takes a second or two.
                course = import_module("gateway.demo.fleet.course")
                course.take(options.keep, options.port, options.nginx, stack, interrupts)
            finally:
                interrupts.ignore()
    except DemoFailed as failure:
        console.print(f"\nThe fleet failed: {failure}", style="bold red", markup=False)
        return FAILED
    except KeyboardInterrupt:
        console.print("\nstopped; nothing is left running", style="dim")
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gateway.demo.fleet", description="three gateways, two jobs")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    parser.add_argument(
        "--port", type=int, default=0, help="port of nginx, or of the first gateway; 0 picks a free one"
    )
    parser.add_argument(
        "--nginx", type=Path, help="folder with nginx's configuration (deploy/nginx); default: no nginx"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
