"""``larder-gateway results``: stored results of pipelines, and operators' overrides."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.connection import Admin, path
from gateway.commands.grammar import Run, subcommand, subcommands
from gateway.commands.grammar import size as number_of_bytes
from gateway.commands.output import Column, facts, hint, line, number, printable, share, size
from gateway.commands.resources import add_list, answering, listing
from gateway.model.errors import LarderError

_SHORT = 12
"""Digits of ids and fingerprints in lists."""
_LEAST = 4
"""Digits that name results at least."""


def _hits(pool: Mapping[str, Any]) -> float | None:
    reads = pool.get("hits", 0) + pool.get("misses", 0)
    return pool.get("hits", 0) / reads if reads else None


COLUMNS = (
    Column("fingerprint", shown=lambda text: str(text)[:_SHORT]),
    Column("tenant"),
    Column("dataset", shown=lambda text: str(text)[:_SHORT]),
    Column("elements", "blobs", number),
    Column("items", shown=number),
    Column("held", "bytes", size),
    Column("target", shown=size),
    Column("why"),
    Column("hits", _hits, share),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Results of pipelines in use: what the cache holds of each, its target and hits. pin gives results space before others,\n"
        "never stores none, quota limits their space, auto undoes all three. docs/pipelines.md explains how they are named.",
        "larder-gateway results list",
        "larder-gateway results pin 9f86d081",
        "larder-gateway results quota 9f86d081 40GB",
    )
    add_list(commands, "results", "list the results", listing("results", COLUMNS))
    shown = subcommand(
        commands,
        "show",
        "show one pool of results",
        answering(lambda admin, options: admin.get(_address(admin, options.results)), _show),
        "larder-gateway results show 9f86d081",
    )
    decided = [
        subcommand(commands, word, summary, _override(changes, word), f"larder-gateway results {word} 9f86d081")
        for word, summary, changes in (
            ("pin", "give results space before others", {"mode": "pin"}),
            ("never", "store none of these results", {"mode": "never"}),
            ("auto", "let the plan decide again", {"mode": None, "quota": None}),
        )
    ]
    bounded = subcommand(
        commands,
        "quota",
        "limit the space of results",
        _override(None),
        "larder-gateway results quota 9f86d081 40GB",
        "larder-gateway results quota 9f86d081 none",
    )
    for one in (shown, *decided, bounded):
        one.add_argument("results", metavar="RESULTS", help="the first digits of a fingerprint, or the name of a pool")
    bounded.add_argument("bytes", metavar="SIZE|none", type=_bytes, help='bytes, such as "40GB"; none: no limit')


def _address(admin: Admin, wanted: str) -> str:
    """The address of a pool of results.

    Raises:
        LarderError: there is no such pool, or more than one.
    """
    known = list(admin.listed("results"))
    long_enough = len(wanted) >= _LEAST
    found = [
        str(one["pool"])
        for one in known
        if one.get("pool") == wanted or (long_enough and str(one.get("fingerprint")).startswith(wanted))
    ]
    if not found:
        raise LarderError(f"unknown results {wanted!r}; see {hint('results', 'list')}")
    if len(found) > 1:
        raise LarderError(f"{wanted!r} is ambiguous: give the pool, one of {', '.join(sorted(found))}")
    return path("results", found[0])


def _show(_options: Namespace, found: Mapping[str, Any]) -> None:
    override = found.get("override") or {}
    facts(
        (
            ("pool", found.get("pool")),
            ("tenant", found.get("tenant")),
            ("dataset", found.get("dataset")),
            ("fingerprint", found.get("fingerprint")),
            ("elements", f"{number(found.get('blobs'))} of {number(found.get('items'))}"),
            ("held", f"{size(found.get('bytes'))} of an estimated {size(found.get('size'))}"),
            ("target", size(found.get("target"))),
            ("why", found.get("why")),
            ("override", override.get("mode") or "none: the plan decides"),
            ("quota", size(override.get("quota"))),
            ("reads", f"{number(found.get('hits'))} hits, {number(found.get('misses'))} misses"),
            ("evicted", size(found.get("evicted_bytes"))),
        )
    )


def _bytes(text: str) -> int | None:
    return None if text == "none" else number_of_bytes(text)


def _override(changes: Mapping[str, Any] | None, word: str = "") -> Run:
    """A command that sets an override; without ``changes``, the quota of the option. Other fields stay, and a concurrent change
    is not overwritten."""

    def ask(admin: Admin, options: Namespace) -> Any:
        address = _address(admin, options.results)
        before = admin.get(address).get("override") or {}
        kept = {"mode": before.get("mode"), "quota": before.get("quota")}
        wanted = {**kept, **({"quota": options.bytes} if changes is None else changes)}
        return admin.ask("PUT", f"{address}/override", wanted, etag=before.get("etag"))

    def tell(options: Namespace, _answer: object) -> None:
        told = word or ("no quota" if options.bytes is None else f"a quota of {size(options.bytes)}")
        line(f"{printable(options.results)}: {told}, from the next plan on")

    return answering(ask, tell)
