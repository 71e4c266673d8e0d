"""``larder-gateway audit``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.connection import connected
from gateway.commands.grammar import asking, describe, pages
from gateway.commands.output import Column, document, moment, named, table, worded

_COLUMNS = (Column("when"), Column("who"), Column("from"), Column("what"), Column("to"), Column("how"))


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    describe(
        command,
        _audit,
        "Changes that were made through the admin endpoints, the last one first: by which token, from where, and what is\n"
        "different since. Secrets are not in it. --json has the ids of the requests, which the gateways' logs have too.",
        "larder-gateway audit",
        "larder-gateway audit --target GWVISION",
        "larder-gateway audit --action credentials.revoke --limit 0 --json",
    )
    command.add_argument("--action", metavar="NAME", help="only this one, such as credentials.revoke")
    command.add_argument("--target", metavar="NAME", help="only what was done to this, such as an access key")
    pages(command, 50)
    asking(command)


def _audit(options: Namespace) -> int:
    with connected(options) as admin:
        entries = list(admin.listed("audit", options.limit, action=options.action, target=options.target))
    if options.json:
        document({"items": entries})
    else:
        table(_COLUMNS, map(_row, entries), "no changes")
    return 0


def _row(entry: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        moment(entry.get("at")),
        entry.get("actor"),
        entry.get("address") or None,
        entry.get("action"),
        entry.get("target") or None,
        _changed(entry.get("before"), entry.get("after")),
    )


def _changed(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str | None:
    """What was made, taken away, or is different: ``name: old -> new`` of each such field."""
    if before is None:
        return named(after or {})
    if after is None:
        return f"was {was}" if (was := named(before)) else None
    fields = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(f"{name}: {_word(before, name)} -> {_word(after, name)}" for name in fields) or None


def _word(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return "-" if value in (None, "") else worded(name, value)
