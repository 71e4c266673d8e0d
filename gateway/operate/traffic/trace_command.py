"""``larder-gateway trace``: live requests of all gateways of the fleet."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from gateway.commands.common.connection import Admin, connected
from gateway.commands.common.grammar import asking, count, describe, duration, place
from gateway.commands.common.output import STYLES, console, milliseconds, moment, note, printable, size, terminal

_EVERY = 0.5
"""Seconds between two polls."""
_OUTCOMES = ("HIT", "MISS", "STALE", "BYPASS")


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _trace,
        "Prints S3 requests, and batches of loaders, as they are answered, by any gateway of the fleet, until Ctrl-C.\n"
        "Gateways keep a bounded number for each command; further ones are counted as dropped, and no client waits. Nothing is\n"
        "kept while nobody follows.",
        "larder-gateway trace --status 5xx",
        "larder-gateway trace --below datasets/imagenet/ --outcome MISS --slower 100ms",
        "larder-gateway trace --tenant vision --count 1000 --json | jq -r .key",
    )
    command.add_argument("--tenant", metavar="NAME", help="only of this tenant")
    command.add_argument(
        "--below", metavar="BUCKET/PREFIX", type=place, help="only of this bucket, or below this prefix"
    )
    command.add_argument("--status", metavar="CODE", type=_status, help="only with this status, such as 404 or 5xx")
    command.add_argument("--outcome", choices=_OUTCOMES, help="only with this cache outcome")
    command.add_argument("--slower", metavar="TIME", type=duration, help="only those that took so long, such as 100ms")
    command.add_argument("--count", metavar="N", type=count, default=0, help="stop after N requests (0: at Ctrl-C)")
    asking(command)


def _status(text: str) -> str:
    if len(text) == 3 and text[0] in "12345" and (text[1:] == "xx" or text[1:].isdecimal()):
        return text
    raise ArgumentTypeError(f"{text!r}: must be a status such as 404, or a class such as 5xx")


def _trace(options: Namespace) -> int:
    bucket, prefix = options.below or (None, None)
    wanted = {
        "tenant": options.tenant, "bucket": bucket, "prefix": prefix, "status": options.status,
        "outcome": options.outcome, "slower": options.slower,
    }  # fmt: skip
    left = options.count
    with connected(options) as admin:
        for request in _followed(admin, wanted):
            if options.json:
                print(json.dumps(request), flush=True)
            else:
                _print(request)
            left -= 1
            if left == 0:
                return 0
    return 0


def _followed(admin: Admin, wanted: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
    follower: str | None = None
    while True:
        answer = admin.get("requests", follower=follower, **wanted)
        follower = answer.get("follower")
        if answer.get("dropped"):
            note(f"{answer['dropped']} more were dropped; ask for fewer with --below, --status, --outcome or --slower")
        yield from answer.get("requests", ())
        time.sleep(_EVERY)


def _print(request: Mapping[str, Any]) -> None:
    outcome, reason = str(request.get("outcome")), request.get("reason")
    parts = (
        (moment(request.get("at")) or "").rpartition(" ")[2], str(request.get("status")), outcome.ljust(6),
        str(request.get("method")), printable(f"{request.get('bucket')}/{request.get('key')}"),
        size(request.get("bytes")) or "", milliseconds(request.get("seconds")), reason,
        f"{request.get('tenant') or 'unknown'}@{request.get('address')}", f"by {request.get('node')}",
    )  # fmt: skip
    text = "  ".join(printable(str(part)) for part in parts if part)
    if terminal():
        console().print(Text(text, STYLES.get(outcome, "")), soft_wrap=True)
    else:
        print(text, flush=True)
