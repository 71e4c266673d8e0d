"""``larder-gateway tenants``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.connection import connected, path
from gateway.commands.grammar import pages, subcommand, subcommands
from gateway.commands.output import Column, document, hint, line, moment, note, printable, table

_COLUMNS = (
    Column("tenant"),
    Column("state"),
    Column("credentials", number=True),
    Column("source"),
    Column("created"),
    Column("description"),
)


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    commands = subcommands(
        command,
        "Tenants: who the fleet serves. Credentials belong to one. A tenant that is disabled is refused everywhere at once,\n"
        "with all of its credentials, until it is enabled again.",
        "larder-gateway tenants create vision --description 'the vision group'",
        "larder-gateway tenants disable vision",
    )
    known = subcommand(commands, "list", "list the tenants", _list, "larder-gateway tenants list --json")
    pages(known, 0)
    new = subcommand(
        commands,
        "create",
        "create a tenant",
        _create,
        "larder-gateway tenants create vision --description 'the vision group'",
    )
    new.add_argument("--description", metavar="TEXT", help="for people")
    disabled = subcommand(
        commands,
        "disable",
        "refuse a tenant with all of its credentials",
        _disable,
        "larder-gateway tenants disable vision",
    )
    enabled = subcommand(commands, "enable", "serve a tenant again", _enable, "larder-gateway tenants enable vision")
    removed = subcommand(
        commands, "remove", "remove a tenant that has no credentials", _remove, "larder-gateway tenants remove vision"
    )
    for one in (new, disabled, enabled, removed):
        one.add_argument("name", metavar="NAME", help="of the tenant")


def _list(options: Namespace) -> int:
    with connected(options) as admin:
        tenants = list(admin.listed("tenants", options.limit))
    if options.json:
        document({"items": tenants})
    else:
        table(_COLUMNS, map(_row, tenants), "no tenants")
    return 0


def _row(tenant: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        tenant.get("name"),
        "disabled" if tenant.get("enabled") is False else "enabled",
        tenant.get("credentials"),
        tenant.get("source"),
        moment(tenant.get("created_at")),
        tenant.get("description") or None,
    )


def _create(options: Namespace) -> int:
    body = {"name": options.name}
    if options.description is not None:
        body["description"] = options.description
    with connected(options) as admin:
        answer = admin.ask("POST", "tenants", body)
    if options.json:
        document(answer)
    else:
        line(f"{printable(options.name)} is created")
        note(f"its first key: {hint('credentials', 'create', '--tenant', options.name)}")
    return 0


def _disable(options: Namespace) -> int:
    return _change(options, enabled=False)


def _enable(options: Namespace) -> int:
    return _change(options, enabled=True)


def _change(options: Namespace, *, enabled: bool) -> int:
    with connected(options) as admin:
        answer = admin.ask("PATCH", path("tenants", options.name), {"enabled": enabled})
    if options.json:
        document(answer)
    else:
        line(f"{printable(options.name)} is {'enabled' if enabled else 'disabled'}")
    return 0


def _remove(options: Namespace) -> int:
    with connected(options) as admin:
        admin.ask("DELETE", path("tenants", options.name))
    if options.json:
        document({"removed": options.name})
    else:
        line(f"{printable(options.name)} is removed")
    return 0
