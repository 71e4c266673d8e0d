"""``larder-gateway problems``: current and past problems, and mutes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gateway.commands.common.connection import Admin, path
from gateway.commands.common.grammar import duration, pages, subcommand, subcommands
from gateway.commands.common.output import Column, line, moment, printable
from gateway.commands.common.resources import add_list, answering, listing

COLUMNS = (
    Column("problem", "name"),
    Column("severity"),
    Column("since", shown=moment),
    Column("muted until", "muted_until", moment),
    Column("what"),
)
PAST = (
    Column("severity"),
    Column("began", "since", moment),
    Column("ended", "until", moment),
    Column("node"),
    Column("what"),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "The problems of the fleet. A muted one is listed last, and neither the console nor the exit status of status counts\n"
        "it. Metrics, alerts and readiness stay as they are.",
        "larder-gateway problems list",
        "larder-gateway problems past",
        "larder-gateway problems mute 'gone node-3' --for 8h",
    )
    add_list(commands, "problems", "list the problems", listing("problems", COLUMNS))
    past = subcommand(
        commands,
        "past",
        "list the problems that ended within a week",
        listing("problems/past", PAST, "no problem has ended"),
        "larder-gateway problems past --json",
    )
    pages(past, 0)
    muted = subcommand(
        commands,
        "mute",
        "list a problem last and do not count it, for a while",
        answering(_mute, _muted),
        "larder-gateway problems mute 'gone node-3' --for 8h",
    )
    muted.add_argument("--for", dest="seconds", type=duration, default=28_800.0, help="for how long; 8h by default")
    ended = subcommand(
        commands,
        "unmute",
        "end the mute of a problem",
        answering(_unmute, lambda options, _: line(f"{printable(options.name)} is counted again")),
        "larder-gateway problems unmute 'gone node-3'",
    )
    for changed in (muted, ended):
        changed.add_argument("name", metavar="PROBLEM", help="its name, as listed")


def _mute(admin: Admin, options: Namespace) -> Any:
    return admin.ask("PUT", path("problems", options.name, "mute"), {"seconds": options.seconds})


def _muted(options: Namespace, answer: dict[str, Any]) -> None:
    line(f"{printable(options.name)} is muted until {moment(answer['muted_until'])}")


def _unmute(admin: Admin, options: Namespace) -> dict[str, str]:
    admin.ask("DELETE", path("problems", options.name, "mute"))
    return {"unmuted": options.name}
