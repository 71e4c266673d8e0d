"""``larder-gateway tokens``: named admin tokens, each with a role.

A token is printed once, when it is created, as a line that a shell and Docker's ``--env-file`` accept.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.grammar import subcommand, subcommands
from gateway.commands.common.output import Column, line, moment, note
from gateway.commands.common.resources import add_list, changing, creating, deleting, listing

_ROLES = ("viewer", "operator", "admin")
_COLUMNS = (
    Column("token", "name"),
    Column("role"),
    Column("expires", shown=moment),
    Column("created", "created_at", moment),
    Column("description"),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Admin tokens with names, which the audit log shows. A viewer reads; an operator changes nodes, space, warm-ups and\n"
        "purges too; an admin changes everything. A created or revoked token counts on every node within a second. The tokens\n"
        "of the configuration, admin.token and admin.read_token, are changed there.",
        "larder-gateway tokens create ci --role operator",
        "larder-gateway tokens revoke ci",
    )
    add_list(commands, "tokens", "list the named tokens, without secrets", listing("tokens", _COLUMNS))
    new = subcommand(
        commands,
        "create",
        "create a token, and print it once",
        creating("tokens", _fields, _tell_token),
        "larder-gateway tokens create ci --role operator --description 'deployments'",
        "# into a file that only its owner can read",
        "(umask 077; larder-gateway tokens create ci > ci.env)",
    )
    changed = subcommand(
        commands,
        "change",
        "change role, end or description of a token",
        changing("tokens", _changes, "--role, --expires or --description"),
        "larder-gateway tokens change ci --role viewer",
    )
    revoked = subcommand(
        commands,
        "revoke",
        "refuse a token everywhere, permanently",
        deleting("tokens", "revoked"),
        "larder-gateway tokens revoke ci",
    )
    for parser in (new, changed):
        parser.add_argument(
            "--role", choices=_ROLES, help="what it may do (viewer)" if parser is new else "what it may do"
        )
        parser.add_argument("--expires", metavar="TIME", help="when it expires, in ISO 8601 (never)")
        parser.add_argument("--description", metavar="TEXT", help="for people")
    for parser in (new, changed, revoked):
        parser.add_argument("name", metavar="NAME", help="the token's name")


def _fields(options: Namespace) -> dict[str, Any]:
    return {"name": options.name, **_changes(options)}


def _changes(options: Namespace) -> dict[str, Any]:
    return {"role": options.role, "expires": options.expires, "description": options.description}


def _tell_token(_options: Namespace, answer: Mapping[str, Any]) -> None:
    line(f"LARDER_ADMIN_TOKEN={shlex.quote(str(answer.get('token')))}")
    note("The token is not shown again.")
