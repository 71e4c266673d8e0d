"""The command ``larder``.

Exit status: 0 for success, 1 when something failed or differs, 2 for wrong usage or configuration, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

from larder.base.errors import CredentialsMissing, LarderError
from larder.grammar import parser

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_EXTRAS = {"pyarrow": "digest", "numpy": "digest", "argcomplete": "completion"}
"""The extras that install a command's dependencies."""
_LISTED = frozenset({"datasets", "dataset", "jobs", "pipelines"})
"""Groups of commands that include ``list``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    if "_ARGCOMPLETE" in os.environ:
        try:
            from larder.commands.completion import complete
        except ImportError:
            return FAILED  # argcomplete is gone: nothing is proposed
        complete(parser())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an unprintable key must not cause a failure
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return FAILED
    except ModuleNotFoundError as error:
        if (extra := _EXTRAS.get(error.name or "")) is None:
            raise
        return _complain(f"this needs {error.name}: pip install 'larder[{extra}]'", FAILED)
    except CredentialsMissing as error:
        return _complain(str(error), USAGE)
    except LarderError as error:
        return _complain(str(error), FAILED)
    except OSError as error:
        status = _complain(str(error), FAILED)
        _drop_output()
        return status
    except ValueError as error:
        return _complain(str(error), USAGE)


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    bare = len(words) < 2 or (words[1].startswith("-") and words[1] not in ("-h", "--help"))
    if bare and (*words, "")[0] in _LISTED:
        words = [words[0], "list", *words[1:]]
    arguments = parser().parse_args(words)
    module, _, function = arguments.run.partition(":")
    # Loaded on use: only some commands need the extras.
    status: int = getattr(import_module(module), function)(arguments)
    return status


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"larder: {message}\n")
    return status


def _drop_output() -> None:
    """The reader of the output is gone, or its disk is full; buffered output must not raise at exit."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            os.dup2(nowhere, stream.fileno())
