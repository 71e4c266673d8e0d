"""``larder-gateway warm``: the fleet loads objects or datasets before they are needed, and the command shows the progress.

Ctrl-C or a lost connection only stops watching. The command then prints how to watch, cancel or resume the warm-up.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.connection import Admin, Unreachable, connected, path
from gateway.commands.common.grammar import asking, describe, exactly, pages, place, subject
from gateway.commands.common.output import Column, document, hint, line, moment, note, number, printable, size
from gateway.commands.common.progress import ProgressStep, amounts, watch
from gateway.commands.common.resources import listing
from gateway.model.errors import ConfigError

_GOING = frozenset({"queued", "running"})


def _what(state: Mapping[str, Any]) -> str:
    for kind in ("dataset", "profile"):
        if state.get(kind):
            return f"{kind} {printable(str(state[kind]))}"
    return printable(f"{state.get('bucket')}/{state.get('key') or state.get('prefix') or ''}")


def _done(state: Mapping[str, Any]) -> str | None:
    done, total = number(state.get("done")), number(state.get("total"))
    return done if total is None else f"{done}/{total}"


_COLUMNS = (
    Column("warm-up", "id"),
    Column("what", _what),
    Column("as", "access_key_id"),
    Column("state"),
    Column("node"),
    Column("done", _done, number=True),
    Column("bytes", "done_bytes", size),
    Column("failed", shown=number),
    Column("began", "created_at", moment),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _warm,
        "Load the objects below a prefix, one object, or the items of a dataset, into the cache before they are needed, with\n"
        "the rights of an access key and at a lower priority than reads. The fleet does the work (--list shows the node), and\n"
        "continues if this command is interrupted or a gateway ends. Exit status 1 if it did not complete, there was nothing to\n"
        "load, or anything failed to load.",
        "larder-gateway warm datasets/imagenet/ --as GWVISION",
        "larder-gateway warm datasets/imagenet/classes.json --exact --as GWVISION",
        "larder-gateway warm --dataset imagenet-train --as GWVISION --detach",
        "larder-gateway warm --list",
        "larder-gateway warm --cancel 5f2c7d1e0c3b4a6f8e9d0a1b2c3d4e5f",
    )
    command.add_argument(
        "place", metavar="BUCKET/PREFIX", type=place, nargs="?", help="BUCKET/ alone: the whole bucket"
    )
    exactly(command)
    others = command.add_mutually_exclusive_group()
    others.add_argument("--dataset", metavar="NAME|ID", help="the items of a dataset, instead of a prefix")
    others.add_argument(
        "--list", action="store_true", help="list warm-ups, the newest first, with the node that runs each"
    )
    others.add_argument("--watch", metavar="ID", help="watch a running warm-up")
    others.add_argument("--cancel", metavar="ID", help="cancel a warm-up; loaded objects stay")
    others.add_argument("--resume", metavar="ID", help="resume a cancelled or failed warm-up")
    command.add_argument("--as", metavar="ACCESS_KEY", dest="key", help="the access key whose rights are used")
    command.add_argument("--request-payer", action="store_true", help="accept the charges of a requester-pays bucket")
    command.add_argument("--detach", action="store_true", help="do not wait for the end")
    pages(command, 50)
    asking(command)


def _warm(options: Namespace) -> int:
    named = [options.place, options.dataset, options.list or None, options.watch, options.cancel, options.resume]
    if sum(option is not None for option in named) != 1:
        raise ConfigError("give BUCKET/PREFIX, or --dataset, --list, --watch, --cancel or --resume")
    if options.exact and options.place is None:
        raise ConfigError("--exact: goes with BUCKET/KEY")
    if options.list:
        return listing("warmups", _COLUMNS, "no warm-ups")(options)
    with connected(options) as admin:
        if options.cancel is not None:
            return _cancel(options, admin)
        if options.watch is not None:
            return follow(options, admin, admin.get(path("warmups", options.watch)))
        if options.resume is not None:
            return follow(options, admin, admin.ask("POST", path("warmups", options.resume, "resume"), {}))
        return follow(options, admin, admin.ask("POST", "warmups", _request(options)))


def _request(options: Namespace) -> dict[str, Any]:
    if options.key is None:
        raise ConfigError("--as: name the access key whose rights are used")
    reader = {"access_key_id": options.key} | ({"request_payer": True} if options.request_payer else {})
    if options.dataset is not None:
        return {"dataset": options.dataset} | reader
    return subject(options) | reader


def follow(options: Namespace, admin: Admin, begun: Mapping[str, Any]) -> int:
    """Wait for the end of a warm-up, unless ``--detach`` is given, and print the result; returns the exit status."""
    name = str(begun["id"])
    if options.detach:
        _tell(options, begun)
        note(f"it continues in the background; {_ways_back(name)}")
        return 0
    try:
        note(f"warm-up {name}")
        ended = watch(lambda: admin.get(path("warmups", name)), _step, lambda state: state.get("state") not in _GOING)
    except KeyboardInterrupt:
        note(f"\nthe warm-up continues; {_ways_back(name)}")
        raise
    except Unreachable:
        note(f"no answer; the warm-up may continue: {_ways_back(name)}")
        raise
    _tell(options, ended)
    if ended.get("state") in ("failed", "cancelled"):
        note(f"loaded objects stay; to resume: {hint('warm', '--resume', name)}")
    return 0 if ended.get("state") == "done" and ended.get("total") != 0 and not ended.get("failed") else 1


def _ways_back(name: str) -> str:
    return f"to watch it: {hint('warm', '--watch', name)}; to cancel it: {hint('warm', '--cancel', name)}"


def _amounts(state: Mapping[str, Any]) -> str:
    failed, unit = state.get("failed"), "items" if state.get("dataset") else "objects"
    text = amounts(state.get("done"), state.get("total"), state.get("done_bytes"), state.get("total_bytes"), unit)
    return f"{text}, {number(failed)} failed" if failed else text


def _step(state: Mapping[str, Any]) -> ProgressStep:
    total, text = state.get("total"), _amounts(state)
    if state.get("state") == "queued":
        text = f"queued behind others, or until Redis can be reached: {text}"
    elif total is None:
        text = f"counting: {text}"
    return ProgressStep(state.get("done") or 0, total, text)


def _tell(options: Namespace, state: Mapping[str, Any]) -> None:
    if options.json:
        document(state)
        return
    line(f"{_what(state)}: {printable(str(state.get('state')))}, {_amounts(state)}")
    if state.get("total") == 0 and state.get("state") == "done":
        line(f"There was nothing to load{': no object has this prefix' if state.get('bucket') else ''}.")
    if state.get("node"):
        line(f"run by node {printable(str(state['node']))}")
    if state.get("there"):
        line(f"{number(state['there'])} were already in the cache")
    if state.get("failure"):
        line(printable(str(state["failure"])))
    for example in state.get("examples") or ():
        line(f"  {printable(str(example.get('key')))}: {printable(str(example.get('why')))}")


def _cancel(options: Namespace, admin: Admin) -> int:
    state = admin.ask("POST", path("warmups", options.cancel, "cancel"), {})
    _tell(options, state)
    if not options.json:
        note(f"loaded objects stay; to resume: {hint('warm', '--resume', str(state.get('id')))}")
    return 0
