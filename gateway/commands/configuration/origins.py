"""``larder-gateway origins``: the object stores behind the fleet."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from gateway.commands.common.grammar import subcommand, subcommands
from gateway.commands.common.output import Column
from gateway.commands.common.resources import add_list, changing, creating, deleting, listing, says
from gateway.commands.common.secret_file import secret_of

_COLUMNS = (
    Column("origin", "name"),
    Column("endpoint"),
    Column("region"),
    Column("access key", "access_key_id"),
    Column("credentials", number=True),
    Column("source"),
    Column("problem"),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Origins: the object stores behind the fleet. Each access key uses one (credentials create --origin).",
        "larder-gateway origins create archive --address https://s3.eu-west-1.amazonaws.com --region eu-west-1",
        "larder-gateway origins remove archive",
    )
    add_list(commands, "origins", "list the origins, without secrets", listing("origins", _COLUMNS))
    new = subcommand(
        commands,
        "create",
        "create an origin",
        creating("origins", _fields, says("created")),
        "larder-gateway origins create archive --address https://s3.eu-west-1.amazonaws.com --region eu-west-1",
        "larder-gateway origins create local --address http://10.0.0.5:9000 --access-key LARDER --secret-file secret",
    )
    changed = subcommand(
        commands,
        "change",
        "change address, region or key of an origin",
        changing("origins", _changes),
        "larder-gateway origins change archive --access-key LARDER2 --secret-file secret",
    )
    for parser in (new, changed):
        parser.add_argument(
            "--address", metavar="URL", required=parser is new, help="http:// or https:// address of the store"
        )
        parser.add_argument(
            "--region", metavar="NAME", help="for signatures (us-east-1)" if parser is new else "for signatures"
        )
        parser.add_argument(
            "--access-key", metavar="ID", help="the gateway's key at the store (the AWS credential chain)"
        )
        parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret of that key")
    removed = subcommand(
        commands,
        "remove",
        "remove an origin that no access key uses",
        deleting("origins"),
        "larder-gateway origins remove archive",
    )
    for parser in (new, changed, removed):
        parser.add_argument("name", metavar="NAME", help="the origin's name")


def _fields(options: Namespace) -> dict[str, Any]:
    return {"name": options.name, **_changes(options)}


def _changes(options: Namespace) -> dict[str, Any]:
    return {
        "endpoint": options.address,
        "region": options.region,
        "access_key_id": options.access_key,
        "secret_access_key": secret_of("--secret-file", options.secret_file),
    }
