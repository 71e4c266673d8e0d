"""``larder-gateway origins``: the stores that access keys read and write."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.commands.connection import connected, path
from gateway.commands.grammar import pages, subcommand, subcommands
from gateway.commands.output import Column, document, line, printable, table
from gateway.commands.secret_file import secret_of

_COLUMNS = (
    Column("origin"),
    Column("endpoint"),
    Column("region"),
    Column("access key"),
    Column("credentials", number=True),
    Column("source"),
    Column("problem"),
)


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    commands = subcommands(
        command,
        "Origins: the stores behind the fleet. An access key names one (credentials create --origin).",
        "larder-gateway origins create archive --address https://s3.eu-west-1.amazonaws.com --region eu-west-1",
        "larder-gateway origins remove archive",
    )
    known = subcommand(
        commands, "list", "list the origins, without secrets", _list, "larder-gateway origins list --json"
    )
    pages(known, 0)
    new = subcommand(
        commands,
        "create",
        "create an origin",
        _create,
        "larder-gateway origins create archive --address https://s3.eu-west-1.amazonaws.com --region eu-west-1",
        "larder-gateway origins create local --address http://10.0.0.5:9000 --access-key LARDER --secret-file secret",
    )
    new.add_argument("--address", metavar="URL", required=True, help="http:// or https:// address of the store")
    new.add_argument("--region", metavar="NAME", help="for signatures (us-east-1)")
    new.add_argument("--access-key", metavar="ID", help="of the gateway there (the AWS credential chain)")
    new.add_argument("--secret-file", metavar="FILE", type=Path, help="file with its secret")
    removed = subcommand(
        commands,
        "remove",
        "remove an origin that no access key names",
        _remove,
        "larder-gateway origins remove archive",
    )
    for one in (new, removed):
        one.add_argument("name", metavar="NAME", help="of the origin")


def _list(options: Namespace) -> int:
    with connected(options) as admin:
        origins = list(admin.listed("origins", options.limit))
    if options.json:
        document({"items": origins})
    else:
        table(_COLUMNS, map(_row, origins), "no origins")
    return 0


def _row(origin: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        origin.get("name"),
        origin.get("endpoint"),
        origin.get("region"),
        origin.get("access_key_id") or None,
        origin.get("credentials"),
        origin.get("source"),
        origin.get("problem") or None,
    )


def _create(options: Namespace) -> int:
    given = {
        "name": options.name,
        "endpoint": options.address,
        "region": options.region,
        "access_key_id": options.access_key,
        "secret_access_key": secret_of("--secret-file", options.secret_file),
    }
    with connected(options) as admin:
        answer = admin.ask("POST", "origins", {name: value for name, value in given.items() if value is not None})
    if options.json:
        document(answer)
    else:
        line(f"{printable(options.name)} is created")
    return 0


def _remove(options: Namespace) -> int:
    with connected(options) as admin:
        admin.ask("DELETE", path("origins", options.name))
    if options.json:
        document({"removed": options.name})
    else:
        line(f"{printable(options.name)} is removed")
    return 0
