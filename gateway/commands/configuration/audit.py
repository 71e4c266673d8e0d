"""``larder-gateway audit``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.grammar import asking, describe, pages
from gateway.commands.common.output import Column, moment, named, worded
from gateway.commands.common.resources import listing


def _changed(entry: Mapping[str, Any]) -> str | None:
    """The fields created, removed, or changed, as ``name: old -> new``."""
    before, after = entry.get("before"), entry.get("after")
    if before is None:
        return named(after or {})
    if after is None:
        return f"was {was}" if (was := named(before)) else None
    fields = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(f"{name}: {_word(before, name)} -> {_word(after, name)}" for name in fields) or None


def _word(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return "-" if value in (None, "", []) else worded(name, value)


_COLUMNS = (
    Column("when", "at", moment),
    Column("who", "actor"),
    Column("from", "address"),
    Column("what", "action"),
    Column("to", "target"),
    Column("how", _changed),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        listing("audit", _COLUMNS, "no changes", ("action", "target")),
        "Changes made through the admin endpoints, newest first: the token, the client's address, and what changed. Secrets\n"
        "are not included. --json adds the ids of the requests, which the gateways' logs have too.",
        "larder-gateway audit",
        "larder-gateway audit --target GWVISION",
        "larder-gateway audit --action credentials.revoke --limit 0 --json",
    )
    command.add_argument("--action", metavar="NAME", help="only this action, such as credentials.revoke")
    command.add_argument("--target", metavar="NAME", help="only changes of this target, such as an access key")
    pages(command, 50)
    asking(command)
