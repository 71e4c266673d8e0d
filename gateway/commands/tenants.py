"""``larder-gateway tenants``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gateway.commands.connection import path
from gateway.commands.grammar import Run, subcommand, subcommands
from gateway.commands.output import Column, hint, moment, note
from gateway.commands.resources import add_list, answering, creating, deleting, listing, says

_COLUMNS = (
    Column("tenant", "name"),
    Column("state", lambda tenant: "disabled" if tenant.get("enabled") is False else "enabled"),
    Column("credentials", number=True),
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
    changes = [
        subcommand(commands, word, summary, run, f"larder-gateway tenants {word} vision")
        for word, summary, run in (
            ("disable", "refuse all credentials of a tenant", _switched(False)),
            ("enable", "accept a tenant's credentials again", _switched(True)),
            ("remove", "remove a tenant that has no credentials", deleting("tenants")),
        )
    ]
    for one in (new, *changes):
        one.add_argument("name", metavar="NAME", help="the tenant's name")


def _created(options: Namespace, answer: object) -> None:
    says("created")(options, answer)
    note(f"its first key: {hint('credentials', 'create', '--tenant', options.name)}")


def _switched(enabled: bool) -> Run:
    return answering(
        lambda admin, options: admin.ask("PATCH", path("tenants", options.name), {"enabled": enabled}),
        says("enabled" if enabled else "disabled"),
    )
