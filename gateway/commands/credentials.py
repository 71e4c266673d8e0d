"""``larder-gateway credentials``: the access keys that clients sign with.

A secret is in the answer that creates it and nowhere else; it is printed once, as lines that a shell and ``--env-file`` of Docker
take as they are.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.commands.connection import connected, path
from gateway.commands.grammar import duration, pages, subcommand, subcommands
from gateway.commands.output import Column, document, line, listed, moment, note, printable, table
from gateway.commands.secret_file import secret_of

_COLUMNS = (
    Column("access key"),
    Column("tenant"),
    Column("state"),
    Column("origin"),
    Column("may"),
    Column("allow"),
    Column("expires"),
    Column("source"),
    Column("description"),
)


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    commands = subcommands(
        command,
        "Access keys of the gateway. What is created or rotated here is in force on every node within a second, and so is a\n"
        "revocation, which lasts as long as the catalog is kept. Keys of a configuration file can be revoked only: take them\n"
        "out of the file too. A node that reaches neither database nor Redis hears of nothing: status says which.",
        "larder-gateway credentials create --tenant vision --allow 'datasets/imagenet/**' --read-only",
        "larder-gateway credentials rotate GWVISION --grace 1h",
        "larder-gateway credentials revoke GWVISION",
    )
    known = subcommand(
        commands,
        "list",
        "list the access keys, without secrets",
        _list,
        "larder-gateway credentials list --tenant vision",
    )
    known.add_argument("--tenant", metavar="NAME", help="only those of this tenant")
    pages(known, 0)
    _add_create(commands)
    rotated = subcommand(
        commands,
        "rotate",
        "give an access key a new secret, and print it once",
        _rotate,
        "larder-gateway credentials rotate GWVISION --grace 1h",
    )
    rotated.add_argument(
        "--grace",
        metavar="TIME",
        type=duration,
        default=0.0,
        help='for how long the old secret is valid too, as "1h" (0)',
    )
    revoked = subcommand(
        commands,
        "revoke",
        "refuse an access key everywhere, for ever",
        _revoke,
        "larder-gateway credentials revoke GWVISION",
    )
    removed = subcommand(
        commands,
        "remove",
        "revoke an access key, and take it off the list",
        _remove,
        "larder-gateway credentials remove GWVISION",
    )
    for one in (rotated, revoked, removed):
        one.add_argument("key", metavar="ACCESS_KEY", help="the access key's id")


def _add_create(commands: Any) -> None:
    new = subcommand(
        commands,
        "create",
        "create an access key, and print its secret once",
        _create,
        "larder-gateway credentials create --tenant vision --allow 'datasets/imagenet/**' --read-only",
        "# into a file that only its owner can read",
        "(umask 077; larder-gateway credentials create --tenant vision > vision.env)",
    )
    new.add_argument("--tenant", metavar="NAME", help="whose it is (a tenant of its own, named as the key)")
    new.add_argument("--access-key", metavar="ID", help="its id, instead of one that the gateway chooses")
    new.add_argument(
        "--allow", metavar="GLOB", action="append", help="bucket/prefix globs that it may touch; repeatable (all)"
    )
    new.add_argument("--read-only", action="store_true", help="refuse its writes")
    new.add_argument("--expires", metavar="TIME", help="when it ends, in ISO 8601 (never)")
    new.add_argument("--description", metavar="TEXT", help="for people")
    new.add_argument("--origin", metavar="NAME", help="the origin that it reads and writes (default)")
    new.add_argument("--origin-access-key", metavar="ID", help="its own key there, instead of the origin's")
    new.add_argument("--origin-secret-file", metavar="FILE", type=Path, help="file with the secret of that key")


def _list(options: Namespace) -> int:
    with connected(options) as admin:
        found = admin.listed("credentials", 0 if options.tenant else options.limit)
        keys = [key for key in found if options.tenant in (None, key.get("tenant"))]
    keys = keys[: options.limit or None]
    if options.json:
        document({"items": keys})
    else:
        table(_COLUMNS, map(_row, keys), "no credentials")
    return 0


def _row(key: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        key.get("access_key_id"),
        key.get("tenant"),
        _state(key),
        key.get("origin"),
        "read" if key.get("read_only") else "read, write",
        listed(key.get("allow")) or "all",
        moment(key.get("expires")),
        key.get("source"),
        key.get("description") or None,
    )


def _state(key: Mapping[str, Any]) -> str:
    if key.get("revoked"):
        return "revoked"
    return f"not in force: {key['problem']}" if key.get("problem") else "in force"


def _create(options: Namespace) -> int:
    given = {
        "access_key_id": options.access_key,
        "tenant": options.tenant,
        "allow": options.allow,
        "read_only": options.read_only or None,
        "expires": options.expires,
        "description": options.description,
        "origin": options.origin,
        "origin_access_key_id": options.origin_access_key,
        "origin_secret_access_key": secret_of("--origin-secret-file", options.origin_secret_file),
    }
    with connected(options) as admin:
        answer = admin.ask("POST", "credentials", {name: value for name, value in given.items() if value is not None})
    _tell_secret(options, answer)
    return 0


def _rotate(options: Namespace) -> int:
    with connected(options) as admin:
        answer = admin.ask("POST", path("credentials", options.key, "rotate"), {"grace": options.grace})
    _tell_secret(options, answer)
    return 0


def _tell_secret(options: Namespace, answer: Mapping[str, Any]) -> None:
    if options.json:
        document(answer)
        return
    line(f"AWS_ACCESS_KEY_ID={shlex.quote(str(answer.get('access_key_id')))}")
    line(f"AWS_SECRET_ACCESS_KEY={shlex.quote(str(answer.get('secret_access_key')))}")
    note("The secret is not shown again.")
    if until := moment(answer.get("previous_expires")):
        note(f"The old secret is valid until {until}.")


def _revoke(options: Namespace) -> int:
    with connected(options) as admin:
        answer = admin.ask("POST", path("credentials", options.key, "revoke"), {})
    if options.json:
        document(answer)
    else:
        line(f"{printable(options.key)} is revoked")
    return 0


def _remove(options: Namespace) -> int:
    with connected(options) as admin:
        admin.ask("DELETE", path("credentials", options.key))
    if options.json:
        document({"removed": options.key})
    else:
        line(f"{printable(options.key)} is removed")
    return 0
