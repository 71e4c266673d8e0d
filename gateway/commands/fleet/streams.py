"""``larder-gateway streams``: access streams, and the space they get."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Any

from gateway.commands.common.connection import Admin, path
from gateway.commands.common.grammar import size as number_of_bytes
from gateway.commands.common.grammar import subcommand, subcommands
from gateway.commands.common.output import Column, age, facts, line, number, printable, share, size
from gateway.commands.common.resources import add_list, answering, listing


def _hits(stream: Mapping[str, Any]) -> float | None:
    accesses = stream.get("accesses")
    return stream.get("hits", 0) / accesses if accesses else None


_STATES: Mapping[object, str] = {0: "ended", 1: "paused"}
"""Targets that mean that a stream keeps no space against others, as the admin API documents them."""


def target(amount: object) -> str | None:
    """The target of a stream's pool: bytes, or why it keeps none."""
    return _STATES.get(amount) or size(amount)


def _of_pool(field: str) -> Callable[[Mapping[str, Any]], object]:
    return lambda stream: (stream.get("pool") or {}).get(field)


_COLUMNS = (
    Column("stream", "name"),
    Column("pattern"),
    Column("reads", "accesses", number),
    Column("hits", _hits, share),
    Column("read", "bytes", size),
    Column("order", _of_pool("order")),
    Column("held", _of_pool("bytes"), size),
    Column("target", _of_pool("target"), target, number=True),
    Column("idle", "idle_seconds", age),
    Column("pinned", "pinned", size),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Access streams: prefixes and large objects that clients read by plain S3 requests, their recognised patterns, and\n"
        "what the cache holds of each. docs/streams.md explains the effects of a pattern.",
        "larder-gateway streams list",
        "larder-gateway streams show datasets/imagenet/train/",
    )
    add_list(commands, "streams", "list the streams", listing("streams", _COLUMNS))
    shown = subcommand(
        commands,
        "show",
        "show one stream, and the evidence for its pattern",
        answering(lambda admin, options: admin.get(path("streams", options.name)), _show),
        "larder-gateway streams show datasets/imagenet/train/",
    )
    shown.add_argument("name", metavar="STREAM", help="the stream's name")
    pinned = subcommand(
        commands,
        "pin",
        "keep so many bytes of a prefix or an object, whatever others gain",
        answering(_pin, _pinned),
        "larder-gateway streams pin datasets/imagenet/val/ 40GB",
    )
    unpinned = subcommand(
        commands,
        "unpin",
        "let the plan decide on a prefix again",
        answering(_pin, _pinned),
        "larder-gateway streams unpin datasets/imagenet/val/",
    )
    for one in (pinned, unpinned):
        one.add_argument("name", metavar="PREFIX", help="bucket/prefix/ with its last slash; or bucket/key, one object")
    pinned.add_argument("bytes", metavar="SIZE", type=number_of_bytes, help='bytes of all nodes, such as "40GB"')
    unpinned.set_defaults(bytes=None)


def _pin(admin: Admin, options: Namespace) -> Any:
    return admin.ask("PUT", f"{path('streams', options.name)}/pin", {"bytes": options.bytes})


def _pinned(options: Namespace, _answer: object) -> None:
    told = "no pin" if options.bytes is None else f"{size(options.bytes)} pinned"
    line(f"{printable(options.name)}: {told}, from the next plan on")


def _show(_options: Namespace, found: Mapping[str, Any]) -> None:
    pool, evidence = found.get("pool") or {}, found.get("evidence") or {}
    facts(
        (
            ("stream", found.get("name")),
            ("pattern", found.get("pattern") or "not recognised yet"),
            *_why(evidence),
            ("reads", f"{number(found.get('accesses'))}, {number(found.get('hits'))} of them hits"),
            ("read", size(found.get("bytes"))),
            ("idle", age(found.get("idle_seconds"))),
            ("by", ", ".join(found.get("nodes") or ())),
            ("loaded ahead", _ahead(found.get("ahead") or {})),
            ("pinned", size(found.get("pinned")) if found.get("pinned") else None),
            ("pool", _pool(pool)),
        )
    )


def _why(evidence: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    if not evidence:
        return ()
    names = "from a listing" if evidence.get("listed") else "from the names read"
    window = (
        ("window", f"{number(evidence.get('window'))} reads of {number(evidence.get('count'))} siblings, {names}"),
        ("order in time", f"{evidence.get('rho'):.2f} (sequential above 0.90)"),
    )
    if not evidence.get("threshold"):
        return window  # a sequential window is not tested further
    return (
        *window,
        ("gaps", f"{evidence.get('statistic'):.3f} (skewed above {evidence.get('threshold'):.3f})"),
        ("repeats", f"{evidence.get('repeats')} (skewed above {evidence.get('most_repeats')})"),
        ("unevenness", f"{evidence.get('unevenness', 0.0):.1f} (skewed above 3.1)"),
    )


def _ahead(ahead: Mapping[str, Any]) -> str | None:
    if not ahead.get("loaded"):
        return None
    accuracy = ahead.get("accuracy")
    return f"{number(ahead['loaded'])}{'' if accuracy is None else f', {share(accuracy)} of them read'}"


def _pool(pool: Mapping[str, Any]) -> str:
    if not pool:
        return "default"
    most = pool.get("target")
    between = ", " if most in _STATES else " of "
    return f"{pool.get('name')}, {pool.get('order')}: {size(pool.get('bytes'))}{between}{target(most)}"
