"""Common grammar of the commands: descriptions, and the options of commands that ask a gateway."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from gateway.model.errors import ConfigError
from gateway.model.units import parse_duration, parse_size

Run = Callable[[Namespace], int]
_WRONG = re.compile(r"argument (?P<what>\S+): invalid choice: '(?P<given>.*)' \(choose from (?P<choices>.*)\)$")
"""Error text of argparse for an invalid choice."""


class Help(RawDescriptionHelpFormatter):
    """Help that keeps paragraphs as written, with a wide column for the names of options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


class Parser(ArgumentParser):
    """A parser that suggests corrections for mistyped commands and choices; so do the parsers of its subcommands."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with status 2."""
        wrong = _WRONG.search(message)
        if wrong is not None:
            choices = [choice.strip(" '") for choice in wrong["choices"].split(",")]
            meant = get_close_matches(wrong["given"], choices, 1)
            kind = "command" if wrong["what"] == "COMMAND" else f"value of {wrong['what']}"
            message = f"{wrong['given']!r} is no {kind}; " + (
                f"did you mean {meant[0]!r}?" if meant else f"there are {', '.join(choices)}"
            )
        super().error(message)


def describe(command: ArgumentParser, run: Run, description: str, *examples: str) -> ArgumentParser:
    """Describe a command by sentences and examples; returns the command.

    Args:
        command: the command.
        run: executes it.
        description: one or more paragraphs.
        examples: lines to type; a line that begins with "#" explains the next.
    """
    _explain(command, description, examples)
    command.set_defaults(run=run)
    return command


def _explain(command: ArgumentParser, description: str, examples: Sequence[str]) -> None:
    command.description = description
    if examples:
        command.epilog = "\n".join(["examples:", *(f"  {line}" for line in examples)])


def subcommands(command: ArgumentParser, description: str, *examples: str) -> Any:
    """The subparsers to which a group's subcommands are added."""
    _explain(command, description, examples)
    return command.add_subparsers(metavar="COMMAND", required=True)


def subcommand(commands: Any, name: str, summary: str, run: Run, *examples: str) -> ArgumentParser:
    """Add a subcommand that asks a gateway."""
    command: ArgumentParser = commands.add_parser(name, help=summary, formatter_class=Help)
    asking(describe(command, run, f"{summary[0].upper()}{summary[1:]}.", *examples))
    return command


def asking(command: ArgumentParser) -> None:
    """Add the options of commands that ask a gateway."""
    group = command.add_argument_group("the gateway")
    group.add_argument("--endpoint", metavar="URL", help="address of a gateway of the fleet (LARDER_ENDPOINT)")
    tokens = group.add_mutually_exclusive_group()
    tokens.add_argument(
        "--token", metavar="TOKEN", help="the admin token (LARDER_ADMIN_TOKEN); visible to other users of this machine"
    )
    tokens.add_argument("--token-file", metavar="FILE", type=Path, help="file with the admin token")
    jsonable(command)


def jsonable(command: ArgumentParser) -> None:
    """Add ``--json``."""
    command.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def pages(command: ArgumentParser, default: int) -> None:
    """Add ``--limit``."""
    command.add_argument(
        "--limit", metavar="N", type=count, default=default, help=f"list at most N ({default or 'all'}); 0: all"
    )


def count(text: str) -> int:
    """A non-negative integer."""
    if not text.isascii() or not text.isdigit():
        raise ArgumentTypeError(f"{text!r}: must be a non-negative integer")
    return int(text)


def size(text: str) -> int:
    """Bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def duration(text: str) -> float:
    """Seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def place(text: str) -> tuple[str, str]:
    """Bucket and key, or prefix, from ``bucket/key`` or ``s3://bucket/key``; the key may be empty."""
    bucket, _, key = text.removeprefix("s3://").partition("/")
    if not bucket:
        raise ArgumentTypeError(f"{text!r}: missing bucket; examples: photos/train/, s3://photos/train/")
    return bucket, key


def exactly(command: ArgumentParser) -> None:
    """Add ``--exact``, for commands that take a prefix as their place."""
    command.add_argument("--exact", action="store_true", help="only the object with exactly this key")


def subject(options: Namespace) -> dict[str, str]:
    """The place of a command as the fields of a request: bucket and prefix, or with ``--exact`` bucket and key.

    Raises:
        ConfigError: ``--exact`` without a key.
    """
    bucket, key = options.place
    if options.exact and not key:
        raise ConfigError("--exact: name the object, BUCKET/KEY")
    return {"bucket": bucket, "key" if options.exact else "prefix": key}
