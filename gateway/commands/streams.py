"""``larder-gateway streams``: access streams, and the space they get."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Any

from gateway.commands.connection import path
from gateway.commands.grammar import subcommand, subcommands
from gateway.commands.output import Column, age, facts, number, share, size
from gateway.commands.resources import add_list, answering, listing


def _hits(stream: Mapping[str, Any]) -> float | None:
    accesses = stream.get("accesses")
    return stream.get("hits", 0) / accesses if accesses else None


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
    Column("target", _of_pool("target"), size),
    Column("idle", "idle_seconds", age),
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
            ("pool", _pool(pool)),
        )
    )


def _why(evidence: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    if not evidence:
        return ()
    names = "from a listing" if evidence.get("listed") else "from the names read"
    return (
        ("window", f"{number(evidence.get('window'))} reads of {number(evidence.get('count'))} siblings, {names}"),
        ("order in time", f"{evidence.get('rho'):.2f} (sequential above 0.90)"),
        ("gaps", f"{evidence.get('statistic'):.3f} (skewed above {evidence.get('threshold'):.3f})"),
        ("repeats", f"{evidence.get('repeats')} (skewed above {evidence.get('most_repeats')})"),
    )


def _ahead(ahead: Mapping[str, Any]) -> str | None:
    if not ahead.get("loaded"):
        return None
    accuracy = ahead.get("accuracy")
    return f"{number(ahead['loaded'])}{'' if accuracy is None else f', {share(accuracy)} of them read'}"


def _pool(pool: Mapping[str, Any]) -> str:
    if not pool:
        return "default"
    return f"{pool.get('name')}, {pool.get('order')}: {size(pool.get('bytes'))} of {size(pool.get('target'))}"
