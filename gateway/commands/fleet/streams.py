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


def _idle(stream: Mapping[str, Any]) -> str | None:
    return age(stream.get("idle_seconds")) if stream.get("accesses") else None


_NO_SPACE = "no space"
_STATES: Mapping[object, str] = {0: "ended", 1: "paused"}
"""Targets, as documented by the admin API, of streams that keep no space against others."""


def target(stream: Mapping[str, Any]) -> str | None:
    """The target of a stream's pool: bytes, or why it keeps none."""
    amount = (stream.get("pool") or {}).get("target")
    denied = amount == 0 and stream.get("override") == "never"
    return _NO_SPACE if denied else _STATES.get(amount) or size(amount)


def _override(stream: Mapping[str, Any]) -> str | None:
    mode = stream.get("override")
    return f"pin {size(stream.get('pinned'))}" if mode == "pin" else mode


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
    Column("target", target, number=True),
    Column("idle", _idle, number=True),
    Column("override", _override),
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
    decided = {
        word: subcommand(commands, word, summary, answering(_decide(mode), _decided(word)), example)
        for word, mode, summary, example in (
            (
                "pin",
                "pin",
                "keep so many bytes of a prefix or an object, whatever others gain",
                "larder-gateway streams pin datasets/imagenet/val/ 40GB",
            ),
            (
                "never",
                "never",
                "give a prefix or an object no space: what is read of it leaves first",
                "larder-gateway streams never logs/2026/",
            ),
            (
                "auto",
                None,
                "let the plan decide on a prefix again",
                "larder-gateway streams auto datasets/imagenet/val/",
            ),
        )
    }
    for parser in decided.values():
        parser.add_argument(
            "name", metavar="PREFIX", help="bucket/prefix/ with its last slash; or bucket/key, one object"
        )
        parser.set_defaults(bytes=None)
    decided["pin"].add_argument(
        "bytes", metavar="SIZE", type=number_of_bytes, help='bytes of all nodes, such as "40GB"'
    )


def _decide(mode: str | None) -> Callable[[Admin, Namespace], Any]:
    def ask(admin: Admin, options: Namespace) -> Any:
        return admin.ask("PUT", f"{path('streams', options.name)}/override", {"mode": mode, "bytes": options.bytes})

    return ask


def _decided(word: str) -> Callable[[Namespace, Any], None]:
    def tell(options: Namespace, _answer: object) -> None:
        decision = word if options.bytes is None else f"{word} {size(options.bytes)}"
        line(f"{printable(options.name)}: {decision}, from the next plan on")

    return tell


def _show(_options: Namespace, stream: Mapping[str, Any]) -> None:
    evidence = stream.get("evidence") or {}
    facts(
        (
            ("stream", stream.get("name")),
            ("pattern", stream.get("pattern") or "not recognised yet"),
            *_why(evidence),
            ("reads", f"{number(stream.get('accesses'))}, {number(stream.get('hits'))} of them hits"),
            ("read", size(stream.get("bytes"))),
            ("idle", _idle(stream)),
            ("by", ", ".join(stream.get("nodes") or ()) or None),
            ("loaded ahead", _ahead(stream.get("ahead") or {})),
            ("override", _override(stream)),
            ("pool", _pool(stream)),
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


def _pool(stream: Mapping[str, Any]) -> str:
    pool = stream.get("pool") or {}
    if not pool:
        return "default"
    space = target(stream)
    between = ", " if space in (_NO_SPACE, *_STATES.values()) else " of "
    return f"{pool.get('name')}, {pool.get('order')}: {size(pool.get('bytes'))}{between}{space}"
