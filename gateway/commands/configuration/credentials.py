"""``larder-gateway credentials``: the access keys that clients sign with.

A secret is printed once, when it is created, as lines that a shell and Docker's ``--env-file`` accept.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.commands.common.connection import Admin
from gateway.commands.common.grammar import duration, subcommand, subcommands
from gateway.commands.common.output import Column, line, listed, moment, note, table
from gateway.commands.common.resources import add_list, answering, changing, creating, deleting, posting, says
from gateway.commands.common.secret_file import secret_of


def _state(key: Mapping[str, Any]) -> str:
    if key.get("revoked"):
        return "revoked"
    return f"not in force: {key['problem']}" if key.get("problem") else "in force"


_COLUMNS = (
    Column("access key", "access_key_id"),
    Column("tenant"),
    Column("state", _state),
    Column("origin"),
    Column("may", lambda key: "read" if key.get("read_only") else "read, write"),
    Column("allow", lambda key: listed(key.get("allow")) or "all"),
    Column("expires", shown=moment),
    Column("source"),
    Column("description"),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Access keys of the gateway. A key that is created or rotated here is valid on every node within a second, and a\n"
        "revocation takes effect as fast, permanently. A key of a configuration file can only be revoked: remove it from the\n"
        "file too. A node that reaches neither the database nor Redis misses changes; see status.",
        "larder-gateway credentials create --tenant vision --allow 'datasets/imagenet/**' --read-only",
        "larder-gateway credentials rotate GWVISION --grace 1h",
        "larder-gateway credentials revoke GWVISION",
    )
    summary = "list the access keys, without secrets"
    run = answering(_list, lambda _, answer: table(_COLUMNS, answer["items"], "no credentials"))
    known = add_list(commands, "credentials", summary, run, "--tenant vision")
    known.add_argument("--tenant", metavar="NAME", help="only those of this tenant")
    changed = _add_changes(commands)
    rotated = subcommand(
        commands,
        "rotate",
        "rotate the secret of an access key, and print it once",
        posting("credentials", "rotate", _tell_secret, lambda options: {"grace": options.grace}),
        "larder-gateway credentials rotate GWVISION --grace 1h",
    )
    rotated.add_argument(
        "--grace",
        metavar="TIME",
        type=duration,
        default=0.0,
        help='how long the old secret stays valid, such as "1h" (0)',
    )
    ended = [
        subcommand(commands, word, summary, run, f"larder-gateway credentials {word} GWVISION")
        for word, summary, run in (
            (
                "revoke",
                "refuse an access key everywhere, permanently",
                posting("credentials", "revoke", says("revoked")),
            ),
            ("remove", "revoke an access key, and remove it from the list", deleting("credentials")),
        )
    ]
    for parser in (changed, rotated, *ended):
        parser.add_argument("name", metavar="ACCESS_KEY", help="the access key's id")


def _add_changes(commands: Any) -> ArgumentParser:
    new = subcommand(
        commands,
        "create",
        "create an access key, and print its secret once",
        creating("credentials", _fields, _tell_secret),
        "larder-gateway credentials create --tenant vision --allow 'datasets/imagenet/**' --read-only",
        "# into a file that only its owner can read",
        "(umask 077; larder-gateway credentials create --tenant vision > vision.env)",
    )
    new.add_argument("--access-key", metavar="ID", help="its id (generated)")
    new.add_argument("--read-only", action="store_true", default=None, help="refuse its writes")
    changed = subcommand(
        commands,
        "change",
        "change what an access key may do, its tenant, origin, end or description",
        changing("credentials", _changes),
        "larder-gateway credentials change GWVISION --allow 'datasets/**' --no-read-only",
        "larder-gateway credentials change GWVISION --allow '' --expires ''",
    )
    changed.add_argument("--read-only", action=BooleanOptionalAction, help="refuse its writes, or allow them")
    for parser in (new, changed):
        parser.add_argument("--tenant", metavar="NAME", help="the owner (a tenant named like the key)")
        parser.add_argument(
            "--allow", metavar="GLOB", action="append", help="bucket/prefix globs that it may access; repeatable (all)"
        )
        parser.add_argument("--expires", metavar="TIME", help="when it expires, in ISO 8601 (never)")
        parser.add_argument("--description", metavar="TEXT", help="for people")
        parser.add_argument("--origin", metavar="NAME", help="the origin that it reads and writes (default)")
        parser.add_argument("--origin-access-key", metavar="ID", help="its own key there, instead of the origin's")
        parser.add_argument("--origin-secret-file", metavar="FILE", type=Path, help="file with the secret of that key")
    return changed


def _list(admin: Admin, options: Namespace) -> dict[str, Any]:
    known = admin.listed("credentials", 0 if options.tenant else options.limit)
    keys = [key for key in known if options.tenant in (None, key.get("tenant"))]
    return {"items": keys[: options.limit or None]}


def _fields(options: Namespace) -> dict[str, Any]:
    return {"access_key_id": options.access_key, **_changes(options)}


def _changes(options: Namespace) -> dict[str, Any]:
    return {
        "tenant": options.tenant,
        "allow": None if options.allow is None else [glob for glob in options.allow if glob],
        "read_only": options.read_only,
        "expires": options.expires,
        "description": options.description,
        "origin": options.origin,
        "origin_access_key_id": options.origin_access_key,
        "origin_secret_access_key": secret_of("--origin-secret-file", options.origin_secret_file),
    }


def _tell_secret(_options: Namespace, answer: Mapping[str, Any]) -> None:
    line(f"AWS_ACCESS_KEY_ID={shlex.quote(str(answer.get('access_key_id')))}")
    line(f"AWS_SECRET_ACCESS_KEY={shlex.quote(str(answer.get('secret_access_key')))}")
    note("The secret is not shown again.")
    if until := moment(answer.get("previous_expires")):
        note(f"The old secret is valid until {until}.")
