"""``larder-gateway purge``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.connection import connected
from gateway.commands.common.grammar import asking, describe, exactly, place, subject
from gateway.commands.common.output import Column, document, line, note, number, printable, size, table
from gateway.model.errors import ConfigError

_COLUMNS = (Column("node"), Column("objects", shown=number), Column("bytes", shown=size), Column("failure"))


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _purge,
        "Make every node drop the objects below a prefix, or one object, after they were changed at the store directly. The\n"
        "store is not changed; the next reads fetch again. Items of datasets stay, since their digest identifies them. The\n"
        "command shows what is cached and asks before it purges, unless --yes is given. Nodes that are down are listed; they\n"
        "apply the purge when they return, if they use the same catalog. Exit status 1 if a node has not applied it.",
        "larder-gateway purge s3://datasets/imagenet/ --dry-run",
        "larder-gateway purge datasets/imagenet/ --yes",
        "larder-gateway purge datasets/imagenet/classes.json --exact",
    )
    command.add_argument("place", metavar="BUCKET/PREFIX", type=place, help="BUCKET/ alone: the whole bucket")
    exactly(command)
    command.add_argument("--dry-run", action="store_true", help="only show what would be dropped")
    command.add_argument("--yes", action="store_true", help="do not ask")
    asking(command)


def _purge(options: Namespace) -> int:
    asks = not (options.yes or options.dry_run)
    if asks and (options.json or not sys.stdin.isatty()):
        raise ConfigError("no terminal to confirm at: give --yes, or --dry-run to see what would be dropped")
    body = subject(options)
    with connected(options) as admin:
        if asks:
            _show(admin.ask("POST", "purge", {**body, "dry_run": True}))
            if not _agreed(f"Drop these objects on every node, {printable('/'.join(options.place))}?"):
                note("nothing was dropped")
                return 1
        answer = admin.ask("POST", "purge", {**body, "dry_run": options.dry_run})
    missed = any(node.get("failure") for node in answer.get("nodes", []))
    if options.json:
        document(answer)
    elif asks and not missed:
        line("done")
    else:
        _show(answer)
    return int(missed)


def _agreed(question: str) -> bool:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show(answer: Mapping[str, Any]) -> None:
    table(_COLUMNS, answer.get("nodes", []), "nothing")
