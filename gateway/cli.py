"""``larder-gateway``: the commands and their exit status.

A command's module is imported when the command is used: ``larder-gateway nodes`` does not need the web framework of ``serve``,
and ``serve`` needs no tables. ``larder-gateway --help`` loads neither.

Exit status: 0 success; 1 a problem: something was found, refused or failed; 2 wrong usage or configuration, including a missing
or refused admin token and the address of something that is not a Larder gateway; 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from argparse import PARSER, Action, ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from operator import attrgetter

from gateway import __version__
from gateway.base.imports import imported
from gateway.commands.common.grammar import Help, Parser
from gateway.feature import Command
from gateway.model.errors import ConfigError, LarderError
from gateway.operate.features import FEATURES

PROBLEM, USAGE, INTERRUPTED = 1, 2, 130

_CORE = (
    Command(1, "serve", "gateway.local.serving", "run a gateway"),
    Command(2, "init", "gateway.local.init", "write a commented configuration to begin with"),
    Command(3, "check-config", "gateway.local.configuration", "check a configuration and print it, without secrets"),
    Command(4, "migrate", "gateway.local.migrate", "bring the catalog's tables up to this version"),
    Command(5, "demo", "gateway.local.demo", "start a store and a gateway, and show what the cache does"),
    Command(6, "completion", "gateway.local.completion", "the script by which a shell completes commands"),
    Command(106, "plan", "gateway.commands.fleet.plan", "the fleet's plan, and its inputs"),
    Command(200, "jobs", "gateway.commands.fleet.jobs", "training jobs, and their benefit from the cache", "list"),
    Command(
        201,
        "datasets",
        "gateway.commands.fleet.datasets",
        "datasets and their space; pin one, or deny it space",
        "list",
    ),
    Command(
        202, "pipelines", "gateway.commands.fleet.pipelines", "input pipelines of jobs, and what they store", "list"
    ),
    Command(203, "results", "gateway.commands.fleet.results", "stored results of pipelines, and their space", "list"),
    Command(
        204,
        "streams",
        "gateway.commands.fleet.streams",
        "access patterns of plain reads, and the space they get",
        "list",
    ),
    Command(206, "simulate", "gateway.sim.command", "run jobs and a fleet under a virtual clock"),
    Command(300, "nodes", "gateway.commands.fleet.nodes", "the nodes of the fleet; drain and undrain", "list"),
    Command(
        304,
        "rules",
        "gateway.commands.configuration.rules",
        "how objects are cached, and which rule applies to one",
        "list",
    ),
    Command(305, "origins", "gateway.commands.configuration.origins", "the object stores behind the fleet", "list"),
    Command(400, "tenants", "gateway.commands.configuration.tenants", "owners of access keys", "list"),
    Command(
        401,
        "credentials",
        "gateway.commands.configuration.credentials",
        "access keys: list, create, rotate, revoke",
        "list",
    ),
    Command(
        402,
        "tokens",
        "gateway.commands.configuration.tokens",
        "admin tokens with names and roles: list, create, revoke",
        "list",
    ),
    Command(403, "audit", "gateway.commands.configuration.audit", "changes: caller, time, values before and after"),
)
COMMANDS = sorted([*_CORE, *(command for feature in FEATURES for command in feature.commands)], key=attrgetter("place"))
"""Those of the core and of the features, by group."""
GROUPS = ("Begin", "Watch", "Train", "Run", "Access")
"""Headings of the list of commands. All but the first are those of the console, too."""

_EPILOG = """\
Commands that ask a gateway find it by --endpoint or LARDER_ENDPOINT, and show it a token: --token-file, LARDER_ADMIN_TOKEN
or --token. "larder-gateway help COMMAND" explains one, with examples; docs/cli.md has them all.

exit status: 0 success; 1 a problem; 2 wrong usage or configuration; 130 Ctrl-C"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status (see above)."""
    if "_ARGCOMPLETE" in os.environ:
        _complete(os.environ.get("COMP_LINE", "").split())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # keys that the terminal cannot show must not raise
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return PROBLEM
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        status = _complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", PROBLEM)
        _drop_output()
        return status


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    used = [command for command in COMMANDS if command.name == (*words, "")[0]]
    # The grammar of all commands takes 6 ms of each start; that of one, 0.7.
    options = parser(*(command.name for command in used), among=used or COMMANDS).parse_args(completed(words))
    try:
        status: int = options.run(options)
    except ConfigError as error:
        return _complain(str(error), USAGE)
    except LarderError as error:
        return _complain(str(error), PROBLEM)
    return status


def _complete(line: Sequence[str]) -> None:
    """Answer a shell that completes a command line, and end the process."""
    imported("gateway.commands.common.names").complete(parser(*line[1:2]))


def completed(words: Sequence[str]) -> Sequence[str]:
    """The command line with a group's usual subcommand inserted: ``nodes --json`` becomes ``nodes list --json``."""
    usual = next((command.usual for command in COMMANDS if command.usual and command.name == (*words, "")[0]), "")
    bare = len(words) < 2 or (words[1].startswith("-") and words[1] not in ("-h", "--help"))
    return [words[0], usual, *words[1:]] if usual and bare else words


def parser(*named: str, among: Sequence[Command] = COMMANDS) -> ArgumentParser:
    """The grammar: the commands ``among`` which one is chosen, with the arguments of those that are ``named``."""
    top = Parser(
        "larder-gateway",
        usage="larder-gateway [-h] [--version] COMMAND ...",
        description=f"S3-compatible object-cache gateway: run, observe and manage it.\n\n{_listed()}",
        epilog=_EPILOG,
        formatter_class=_GroupedHelp,
    )
    top.add_argument("--version", action="version", version=f"larder-gateway {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", prog="larder-gateway")
    for command in among:
        own = commands.add_parser(command.name, help=command.summary, formatter_class=Help)
        if command.name in named:
            imported(command.module).add(own)
    commands.add_parser("help", help="explain a command: help warm")
    return top


class _GroupedHelp(Help):
    """Help whose description lists the commands (``_listed``), by group rather than in one row."""

    def add_argument(self, action: Action) -> None:
        """Add an option."""
        if action.nargs != PARSER:
            super().add_argument(action)


def _listed() -> str:
    """The commands below the headings of their groups."""
    width = max(len(command.name) for command in COMMANDS) + 2
    lines = []
    for at, group in enumerate(GROUPS):
        lines.append(f"{group}:")
        lines += [f"  {command.name:{width}}{command.summary}" for command in COMMANDS if command.place // 100 == at]
    return "\n".join(lines)


def _complain(message: str, status: int) -> int:
    print(f"larder-gateway: {message}", file=sys.stderr)
    return status


def _drop_output() -> None:
    """The reader of the output is gone, or its disk is full; buffered output must not raise at exit."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            os.dup2(nowhere, stream.fileno())
