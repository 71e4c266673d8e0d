"""The entry point: ``python -m gateway.demo.fleet [--keep] [--port N] [--nginx FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from gateway.demo.run import FAILED, attempt
from gateway.demo.table import console

NEEDED = ("boto3", "moto", "sklearn", "PIL", "larder", "pyarrow")


def main(arguments: list[str] | None = None) -> int:
    """Start a fleet, demonstrate it, and remove everything.

    Returns:
        The exit code: 0, 1 if a claim did not hold or a package is missing, 130 after Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        console.print(f"This also needs {', '.join(missing)}; `make fleet` installs them", style="red", markup=False)
        return FAILED
    given = (options.keep, options.port, options.nginx)
    return attempt("The fleet", lambda *parts: import_module("gateway.demo.fleet.course").take(*given, *parts))


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
