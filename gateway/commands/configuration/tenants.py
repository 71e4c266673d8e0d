"""``larder-gateway tenants``."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.connection import Admin, path
from gateway.commands.common.grammar import Run, subcommand, subcommands
from gateway.commands.common.grammar import size as number_of_bytes
from gateway.commands.common.output import Column, hint, moment, note, speed
from gateway.commands.common.resources import add_list, answering, creating, deleting, listing, says
from gateway.model.errors import LarderError

_MOST_REQUESTS = 1e9
"""Requests per second of a limit."""


def _limits(tenant: Mapping[str, Any]) -> str | None:
    requests, sent = tenant.get("requests_per_second"), tenant.get("bytes_per_second")
    exact = f"{requests:,}".removesuffix(".0") if requests else ""
    limits = [f"{exact} requests/s" if exact else "", speed(sent) if sent else ""]
    return ", ".join(filter(None, limits)) or None


_COLUMNS = (
    Column("tenant", "name"),
    Column("state", lambda tenant: "disabled" if tenant.get("enabled") is False else "enabled"),
    Column("credentials", number=True),
    Column("limits", _limits),
    Column("source"),
    Column("created", "created_at", moment),
    Column("description"),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Tenants own the credentials. All credentials of a disabled tenant are refused everywhere at once, until it is enabled\n"
        "again.",
        "larder-gateway tenants create vision --description 'the vision group'",
        "larder-gateway tenants disable vision",
    )
    add_list(commands, "tenants", "list the tenants", listing("tenants", _COLUMNS))
    new = subcommand(
        commands,
        "create",
        "create a tenant",
        creating("tenants", lambda options: {"name": options.name, "description": options.description}, _created),
        "larder-gateway tenants create vision --description 'the vision group'",
    )
    new.add_argument("--description", metavar="TEXT", help="for people")
    limited = subcommand(
        commands,
        "limit",
        "limit a tenant's requests and bytes per second, through all gateways together",
        answering(_limit, says("limited")),
        "larder-gateway tenants limit vision --requests 2000 --bytes 2GB",
        "larder-gateway tenants limit vision --bytes 0",
    )
    limited.add_argument("--requests", metavar="N", type=_rate, help="per second; 0: no limit; omitted: as it is")
    limited.add_argument("--bytes", metavar="SIZE", type=number_of_bytes, help='per second, such as "2GB"; 0: no limit')
    changes = [
        subcommand(commands, word, summary, run, f"larder-gateway tenants {word} vision")
        for word, summary, run in (
            ("disable", "refuse all credentials of a tenant", _switched(False)),
            ("enable", "accept a tenant's credentials again", _switched(True)),
            ("remove", "remove a tenant that has no credentials", deleting("tenants")),
        )
    ]
    for parser in (new, limited, *changes):
        parser.add_argument("name", metavar="NAME", help="the tenant's name")


def _created(options: Namespace, answer: object) -> None:
    says("created")(options, answer)
    note(f"its first key: {hint('credentials', 'create', '--tenant', options.name)}")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= _MOST_REQUESTS:
        raise ArgumentTypeError(f"{text!r}: must be a number of requests, 0 or more")
    return rate


def _limit(admin: Admin, options: Namespace) -> Any:
    asked = {"requests_per_second": options.requests, "bytes_per_second": options.bytes}
    changes = {name: value for name, value in asked.items() if value is not None}
    if not changes:
        raise LarderError("--requests or --bytes is required")
    return admin.ask("PATCH", path("tenants", options.name), changes)


def _switched(enabled: bool) -> Run:
    return answering(
        lambda admin, options: admin.ask("PATCH", path("tenants", options.name), {"enabled": enabled}),
        says("enabled" if enabled else "disabled"),
    )
