"""``larder-gateway results``: stored results of pipelines, and operators' overrides."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.connection import Admin, path
from gateway.commands.common.grammar import subcommand, subcommands
from gateway.commands.common.output import Column, facts, hint, number, share, size
from gateway.commands.common.overrides import Overridden, add_overrides
from gateway.commands.common.resources import add_list, answering, listing
from gateway.model.errors import LarderError

_SHORT = 12
"""Digits of ids and fingerprints in lists."""
_LEAST = 4
"""The fewest digits that identify results."""


def _hits(pool: Mapping[str, Any]) -> float | None:
    reads = pool.get("hits", 0) + pool.get("misses", 0)
    return pool.get("hits", 0) / reads if reads else None


COLUMNS = (
    Column("fingerprint", shown=lambda text: str(text)[:_SHORT]),
    Column("tenant"),
    Column("dataset", "dataset_name"),
    Column("elements", "blobs", number),
    Column("items", shown=number),
    Column("held", "bytes", size),
    Column("target", shown=size),
    Column("why"),
    Column("hits", _hits, share),
)


def address_of(admin: Admin, wanted: str) -> str:
    """The address of a pool of results.

    Raises:
        LarderError: there is no such pool, or more than one.
    """
    known = list(admin.listed("results"))
    long_enough = len(wanted) >= _LEAST
    matching = [
        str(results["pool"])
        for results in known
        if results.get("pool") == wanted or (long_enough and str(results.get("fingerprint")).startswith(wanted))
    ]
    if not matching:
        raise LarderError(f"unknown results {wanted!r}; see {hint('results', 'list')}")
    if len(matching) > 1:
        raise LarderError(f"{wanted!r} is ambiguous: give the pool, one of {', '.join(sorted(matching))}")
    return path("results", matching[0])


_NAMED, _MEANING = "RESULTS", "the first digits of a fingerprint, or the name of a pool"
OVERRIDDEN = Overridden(
    "results",
    "results",
    "9f86d081",
    pin="give results space before others",
    never="store none of these results",
    quota="limit the space of results",
    address=address_of,
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
        answering(lambda admin, options: admin.get(address_of(admin, options.results)), _show),
        "larder-gateway results show 9f86d081",
    )
    add_overrides(commands, OVERRIDDEN, _NAMED, _MEANING)
    shown.add_argument("results", metavar=_NAMED, help=_MEANING)


def _bound(results: Mapping[str, Any]) -> str:
    """Whether the elements may be fewer: copies on two nodes, which gateways cannot tell from others."""
    return "at most " if results.get("blobs_least", results.get("blobs")) != results.get("blobs") else ""


def _show(_options: Namespace, results: Mapping[str, Any]) -> None:
    override = results.get("override") or {}
    facts(
        (
            ("pool", results.get("pool")),
            ("tenant", results.get("tenant")),
            ("dataset", results.get("dataset")),
            ("fingerprint", results.get("fingerprint")),
            ("elements", f"{_bound(results)}{number(results.get('blobs'))} of {number(results.get('items'))}"),
            ("held", f"{size(results.get('bytes'))} of an estimated {size(results.get('size'))}"),
            ("target", size(results.get("target"))),
            ("why", results.get("why")),
            ("override", override.get("mode") or "none: the plan decides"),
            ("quota", size(override.get("quota"))),
            ("reads", f"{number(results.get('hits'))} hits, {number(results.get('misses'))} misses"),
            ("evicted", size(results.get("evicted_bytes"))),
        )
    )
