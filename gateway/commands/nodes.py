"""``larder-gateway nodes``: who is in the fleet, and taking a node out of it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.commands.connection import connected, path
from gateway.commands.grammar import pages, subcommand, subcommands
from gateway.commands.output import Column, age, document, hint, line, note, number, printable, share, size, table

_COLUMNS = (
    Column("node"),
    Column("address"),
    Column("state"),
    Column("used", number=True),
    Column("capacity", number=True),
    Column("fill", number=True),
    Column("blobs", number=True),
    Column("disk"),
    Column("redis"),
    Column("version"),
    Column("up", number=True),
)


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    commands = subcommands(
        command,
        "The nodes of the fleet. A node that is drained is home of nothing: the others take over from it what it was home of,\n"
        "each object when it is wanted, for as long as it is there; and it serves who asks it.\n"
        "When its clients have gone elsewhere it can be stopped. It is back after undrain, or a restart.",
        "larder-gateway nodes list",
        "larder-gateway nodes drain node-2",
        "larder-gateway nodes dismiss node-3",
    )
    known = subcommand(commands, "list", "list the nodes", _list, "larder-gateway nodes list --json")
    pages(known, 0)
    for name, summary, run in (
        ("dismiss", "take a node off the list that died and will not come back", _dismiss),
        ("drain", "take a node out of the ring, while it serves on", _drain),
        ("undrain", "take a drained node back into the ring", _undrain),
    ):
        changed = subcommand(commands, name, summary, run, f"larder-gateway nodes {name} node-2")
        changed.add_argument("node", metavar="NODE", help="its id, as nodes list has it")
        if name == "drain":
            changed.add_argument("--force", action="store_true", help="even if no other node is left")


def show(nodes: Iterable[Mapping[str, Any]]) -> None:
    """A table of nodes."""
    table(_COLUMNS, map(_row, nodes), "no nodes")


def _row(node: Mapping[str, Any]) -> tuple[object, ...]:
    used, capacity, gone = node.get("bytes"), node.get("capacity"), node.get("state") == "GONE"
    return (
        node.get("id"),
        node.get("address"),
        node.get("state"),
        size(used),
        size(capacity),
        share(used / capacity) if used is not None and capacity else None,
        number(node.get("blobs")),
        node.get("disk"),
        None if gone else "lost" if node.get("redis") is False else "yes",
        node.get("version"),
        None if gone else age(node.get("uptime_seconds")),
    )


def _list(options: Namespace) -> int:
    with connected(options) as admin:
        nodes = list(admin.listed("nodes", options.limit))
    if options.json:
        document({"items": nodes})
    else:
        show(nodes)
    return 0


def _dismiss(options: Namespace) -> int:
    with connected(options) as admin:
        admin.ask("DELETE", path("nodes", options.node))
    if options.json:
        document({"dismissed": options.node})
    else:
        line(f"{printable(options.node)} is dismissed")
    return 0


def _drain(options: Namespace) -> int:
    body = {"force": True} if options.force else {}
    with connected(options) as admin:
        answer = admin.ask("POST", path("nodes", options.node, "drain"), body)
    _tell(options, answer)
    if not options.json:
        note(f"it serves on, and is taken back by: {hint('nodes', 'undrain', options.node)}")
    return 0


def _undrain(options: Namespace) -> int:
    with connected(options) as admin:
        answer = admin.ask("POST", path("nodes", options.node, "undrain"), {})
    _tell(options, answer)
    return 0


def _tell(options: Namespace, answer: Mapping[str, Any]) -> None:
    if options.json:
        document(answer)
    else:
        line(f"{printable(options.node)} is {printable(str(answer.get('state', 'as it was asked to be')))}")
