"""``larder-gateway datasets``: what the fleet knows of datasets, and an operator's word on their space."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.commands import jobs
from gateway.commands.connection import Admin, connected, path
from gateway.commands.grammar import pages, subcommand, subcommands
from gateway.commands.grammar import size as number_of_bytes
from gateway.commands.output import (
    Column,
    document,
    facts,
    hint,
    line,
    listed,
    named,
    number,
    printable,
    share,
    size,
    table,
)
from gateway.model.errors import LarderError

_COLUMNS = (
    Column("dataset"),
    Column("id"),
    Column("items", number=True),
    Column("bytes", number=True),
    Column("caching"),
    Column("why"),
    Column("granted", number=True),
    Column("resident", number=True),
)


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    commands = subcommands(
        command,
        "Datasets of all tenants, and what the plan gives each. A dataset that is pinned gets its space whatever its jobs gain;\n"
        "one that is set to never gets none; a quota is the most that it gets in any case; auto takes all of it back.",
        "larder-gateway datasets list",
        "larder-gateway datasets pin imagenet-train",
        "larder-gateway datasets quota imagenet-train 40GB",
        "larder-gateway datasets auto imagenet-train",
    )
    known = subcommand(commands, "list", "list the datasets", _list, "larder-gateway datasets list --json")
    pages(known, 0)
    shown = subcommand(
        commands, "show", "show one dataset with its plan", _show, "larder-gateway datasets show imagenet-train"
    )
    decided = [
        subcommand(commands, word, summary, run, f"larder-gateway datasets {word} imagenet-train")
        for word, summary, run in (
            ("pin", "give a dataset its space, whatever its jobs gain", _pin),
            ("never", "give a dataset no space", _never),
            ("auto", "let the plan decide again", _auto),
        )
    ]
    bounded = subcommand(
        commands,
        "quota",
        "let a dataset have so many bytes at most",
        _quota,
        "larder-gateway datasets quota imagenet-train 40GB",
        "larder-gateway datasets quota imagenet-train none",
    )
    for one in (shown, *decided, bounded):
        one.add_argument("dataset", metavar="NAME|ID", help="a name, or the first digits of an id")
    bounded.add_argument("bytes", metavar="SIZE|none", type=_bytes, help='bytes, as "40GB"; none: any number')


def show(datasets: Iterable[Mapping[str, Any]]) -> None:
    """A table of datasets."""
    table(_COLUMNS, map(_row, datasets), "no datasets")


def _row(dataset: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        listed(dataset.get("names")),
        dataset.get("id"),
        number(dataset.get("items")),
        size(dataset.get("bytes")),
        "full, in part" if dataset.get("shortfall") else dataset.get("caching"),
        dataset.get("why"),
        size(dataset.get("granted")),
        share(dataset.get("resident_share")),
    )


def find(admin: Admin, wanted: str) -> str:
    """The id of the one dataset that has this name, or an id that begins so, as the gateway lists it.

    Raises:
        LarderError: there is none, or more than one.
    """
    known = list(admin.listed("datasets"))
    found = [each for each in known if wanted in each.get("names", ())]
    found = found or [each for each in known if _same(str(each.get("id")), wanted)]
    if not found:
        raise LarderError(f"there is no dataset {wanted!r}; {hint('datasets', 'list')} has those that there are")
    if len(found) > 1:
        raise LarderError(
            f"{wanted!r} is several datasets: give the id, one of {', '.join(str(one['id']) for one in found)}"
        )
    return str(found[0]["id"])


def _same(listed_id: str, wanted: str) -> bool:
    """Whether one is the beginning of the other: lists have the first digits only."""
    return len(wanted) >= 4 and (listed_id.startswith(wanted) or wanted.startswith(listed_id))


def _list(options: Namespace) -> int:
    with connected(options) as admin:
        datasets = list(admin.listed("datasets", options.limit))
    if options.json:
        document({"items": datasets})
    else:
        show(datasets)
    return 0


def _show(options: Namespace) -> int:
    with connected(options) as admin:
        found = admin.get(path("datasets", find(admin, options.dataset)))
    if options.json:
        document(found)
        return 0
    chunks, inputs, override = (found.get(name) or {} for name in ("chunks", "inputs", "override"))
    registered = [f"{each.get('tenant')}/{each.get('name')}" for each in found.get("registered") or ()]
    facts(
        (
            ("dataset", listed(registered) or listed(found.get("names"))),
            ("id", found.get("full_id") or found.get("id")),
            ("items", number(found.get("items"))),
            ("bytes", size(found.get("bytes"))),
            ("caching", found.get("caching")),
            ("why", found.get("why")),
            ("decided here", override.get("mode") or "nothing: the manager decides"),
            ("quota", size(override.get("quota"))),
            ("granted", size(found.get("granted"))),
            ("resident", share(found.get("resident_share"))),
            ("chunks", _chunks(chunks) if chunks.get("units") else None),
            ("the manager saw", named(inputs)),
        )
    )
    if found.get("jobs"):
        line()
        jobs.show(found["jobs"])
    return 0


def _chunks(chunks: Mapping[str, Any]) -> str:
    """Which chunks of a rotated dataset are held."""
    complete = " ".join(map(str, chunks.get("complete") or ())) or "none"
    loading = chunks.get("loading", -1)
    return f"{complete} of {chunks['units']} complete{f', {loading} loading' if loading >= 0 else ''}"


def _bytes(text: str) -> int | None:
    return None if text == "none" else number_of_bytes(text)


def _pin(options: Namespace) -> int:
    return _decide(options, {"mode": "pin"}, "pin")


def _never(options: Namespace) -> int:
    return _decide(options, {"mode": "never"}, "never")


def _auto(options: Namespace) -> int:
    return _decide(options, {"mode": None, "quota": None}, "auto")


def _quota(options: Namespace) -> int:
    word = "any number of bytes" if options.bytes is None else f"{size(options.bytes)} at most"
    return _decide(options, {"quota": options.bytes}, word)


def _decide(options: Namespace, changes: Mapping[str, Any], word: str) -> int:
    """Change a decision; what is not changed stays, and what somebody else changes meanwhile is not overwritten."""
    with connected(options) as admin:
        place = path("datasets", find(admin, options.dataset))
        before = admin.get(place).get("override") or {}
        wanted = {"mode": before.get("mode"), "quota": before.get("quota"), **changes}
        answer = admin.ask("PUT", f"{place}/override", wanted, etag=before.get("etag"))
    if options.json:
        document(answer)
    else:
        line(f"{printable(options.dataset)}: {word}, from the next plan on")
    return 0
