"""``larder-gateway profiles``: record the reads of a job, and load them before its next run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.connection import Admin, connected, path
from gateway.commands.common.grammar import duration, pages, place, subcommand, subcommands
from gateway.commands.common.output import Column, facts, hint, line, moment, note, number, printable, size, table
from gateway.commands.common.resources import add_list, answering, deleting, listing, posting
from gateway.operate.warm.command import follow

_COLUMNS = (
    Column("profile", "name"),
    Column("tenant"),
    Column("of", lambda profile: f"{profile.get('bucket')}/{profile.get('prefix') or ''}"),
    Column("by", "access_key_id"),
    Column("state"),
    Column("reads", shown=number),
    Column("bytes", shown=size),
    Column("until", shown=moment),
)
_READS = (
    Column("key"),
    Column("bytes", lambda read: f"{read.get('start')}-{read.get('stop')}", number=True),
    Column("of", "size", number=True),
    Column("at", shown=moment),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Profiles: the reads of an access key below a prefix, in order, recorded from its plain S3 reads by all gateways that\n"
        "share the catalog. warm loads them into the cache, with the rights of a key of the same tenant. Datasets of the loader\n"
        "need no profile: warm --dataset loads one.",
        "larder-gateway profiles record eval datasets/imagenet/val/ --as GWVISION --for 30m",
        "larder-gateway profiles stop eval",
        "larder-gateway profiles warm eval --as GWVISION",
    )
    add_list(commands, "profiles", "list the profiles", listing("profiles", _COLUMNS))
    _add_record(commands)
    shown = subcommand(
        commands,
        "show",
        "show one profile, and its first reads",
        answering(_found, _show),
        "larder-gateway profiles show eval --limit 0",
    )
    pages(shown, 10)
    warmed = subcommand(
        commands,
        "warm",
        "load the reads of a profile into the cache, like the command warm",
        _warm,
        "larder-gateway profiles warm eval --as GWVISION",
    )
    warmed.add_argument(
        "--as", metavar="ACCESS_KEY", dest="key", required=True, help="the access key whose rights are used"
    )
    warmed.add_argument("--detach", action="store_true", help="do not wait for the end")
    others = [
        subcommand(commands, word, summary, run, f"larder-gateway profiles {word} eval")
        for word, summary, run in (
            ("stop", "end a recording", posting("profiles", "stop", _tell)),
            ("delete", "delete a profile; its objects stay in the cache", deleting("profiles", "deleted")),
        )
    ]
    for parser in (shown, warmed, *others):
        parser.add_argument("name", metavar="NAME", help="the profile's name")


def _add_record(commands: Any) -> None:
    recorded = subcommand(
        commands,
        "record",
        "start recording the reads of an access key",
        answering(lambda admin, options: admin.ask("POST", "profiles", _request(options)), _recording),
        "larder-gateway profiles record eval datasets/imagenet/val/ --as GWVISION --for 30m",
    )
    recorded.add_argument("name", metavar="NAME", help="name of the new profile")
    recorded.add_argument("place", metavar="BUCKET/PREFIX", type=place, help="BUCKET/ alone: the whole bucket")
    recorded.add_argument("--as", metavar="ACCESS_KEY", dest="key", required=True, help="the access key to record")
    recorded.add_argument(
        "--for", metavar="TIME", dest="seconds", type=duration, default=3600.0, help="duration of the recording (1h)"
    )


def _request(options: Namespace) -> dict[str, Any]:
    bucket, prefix = options.place
    named = {"name": options.name, "access_key_id": options.key, "bucket": bucket, "prefix": prefix}
    return {**named, "seconds": int(options.seconds)}


def _recording(options: Namespace, answer: Mapping[str, Any]) -> None:
    line(f"{printable(options.name)} is recorded until {moment(answer.get('until'))}")
    note(f"to stop it earlier: {hint('profiles', 'stop', options.name)}")


def _tell(_options: Namespace, answer: Mapping[str, Any]) -> None:
    line(f"{printable(str(answer.get('name')))} is {printable(str(answer.get('state')))}: {_amount(answer)}")


def _amount(profile: Mapping[str, Any]) -> str:
    return f"{number(profile.get('reads'))} reads, {size(profile.get('bytes'))}"


def _found(admin: Admin, options: Namespace) -> dict[str, Any]:
    document = admin.get(path("profiles", options.name))
    return {**document, "items": list(admin.listed(path("profiles", options.name, "reads"), options.limit))}


def _show(_options: Namespace, profile: Mapping[str, Any]) -> None:
    facts(
        (
            ("profile", profile.get("name")),
            ("of", f"{profile.get('bucket')}/{profile.get('prefix') or ''}"),
            ("by", f"{profile.get('access_key_id')}, of the tenant {profile.get('tenant')}"),
            ("state", profile.get("state")),
            ("has", _amount(profile)),
            ("from", moment(profile.get("created_at"))),
            ("until", moment(profile.get("until"))),
        )
    )
    table(_READS, profile["items"], "no reads yet")


def _warm(options: Namespace) -> int:
    with connected(options) as admin:
        request = {"profile": options.name, "access_key_id": options.key}
        return follow(options, admin, admin.ask("POST", "warmups", request))
