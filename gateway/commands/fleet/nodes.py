"""``larder-gateway nodes``: the nodes of the fleet, and draining them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.grammar import subcommand, subcommands
from gateway.commands.common.output import Column, age, hint, line, note, number, printable, share, size
from gateway.commands.common.resources import add_list, deleting, listing, posting


def _fill(node: Mapping[str, Any]) -> float | None:
    used, capacity = node.get("bytes"), node.get("capacity")
    return used / capacity if used is not None and capacity else None


def _redis(node: Mapping[str, Any]) -> str | None:
    return None if _gone(node) else "lost" if node.get("redis") is False else "yes"


def _gone(node: Mapping[str, Any]) -> bool:
    return node.get("state") == "GONE"


COLUMNS = (
    Column("node", "id"),
    Column("address"),
    Column("state"),
    Column("used", "bytes", size),
    Column("capacity", shown=size),
    Column("fill", _fill, share),
    Column("blobs", shown=number),
    Column("disk"),
    Column("redis", _redis),
    Column("version"),
    Column("up", lambda node: None if _gone(node) else node.get("uptime_seconds"), age),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "The nodes of the fleet. A drained node owns no keys: the other nodes take over its objects as they are read, while\n"
        "it is up, and it still serves its clients. It can be stopped once these have moved to other nodes. undrain or a\n"
        "restart brings it back.",
        "larder-gateway nodes list",
        "larder-gateway nodes drain node-2",
        "larder-gateway nodes dismiss node-3",
    )
    add_list(commands, "nodes", "list the nodes", listing("nodes", COLUMNS))
    for name, summary, run in (
        ("dismiss", "remove a dead node from the list", deleting("nodes", "dismissed")),
        ("drain", "take a node out of the ring; it keeps serving", posting("nodes", "drain", _drained, _force)),
        ("undrain", "bring a drained node back into the ring", posting("nodes", "undrain", _tell)),
    ):
        changed = subcommand(commands, name, summary, run, f"larder-gateway nodes {name} node-2")
        changed.add_argument("name", metavar="NODE", help="the node's id")
        if name == "drain":
            changed.add_argument("--force", action="store_true", help="even if no other node is left")


def _force(options: Namespace) -> dict[str, bool]:
    return {"force": True} if options.force else {}


def _drained(options: Namespace, answer: Mapping[str, Any]) -> None:
    _tell(options, answer)
    note(f"it keeps serving; to bring it back: {hint('nodes', 'undrain', options.name)}")


def _tell(options: Namespace, answer: Mapping[str, Any]) -> None:
    line(f"{printable(options.name)} is {printable(str(answer.get('state', 'changed')))}")
