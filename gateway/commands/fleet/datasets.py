"""``larder-gateway datasets``: the fleet's datasets, and operators' overrides."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.connection import Admin, path
from gateway.commands.common.grammar import subcommand, subcommands
from gateway.commands.common.output import Column, facts, hint, line, listed, named, number, share, size, table
from gateway.commands.common.overrides import Overridden, add_overrides
from gateway.commands.common.resources import add_list, answering, listing
from gateway.commands.fleet import jobs
from gateway.model.errors import LarderError

COLUMNS = (
    Column("dataset", "names", listed),
    Column("id"),
    Column("items", shown=number),
    Column("bytes", shown=size),
    Column("caching", lambda dataset: "full, in part" if dataset.get("shortfall") else dataset.get("caching")),
    Column("why"),
    Column("granted", shown=size),
    Column("resident", "resident_share", share),
)

_TENTHS = (
    Column("items"),
    Column("reads", shown=number),
    Column("share of reads", "read_share", share),
    Column("hits", "hit_ratio", share),
)

_NAMED, _MEANING = "NAME|ID", "a name, or the first digits of an id"
OVERRIDDEN = Overridden(
    "datasets",
    "dataset",
    "imagenet-train",
    pin="give a dataset space, whatever its jobs gain",
    never="give a dataset no space",
    quota="limit the space of a dataset",
    address=lambda admin, wanted: path("datasets", find(admin, wanted)),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Datasets of all tenants, and their place in the plan. pin gives a dataset space whatever its jobs gain, never denies\n"
        "it space, quota limits its space in any mode, auto undoes all three.",
        "larder-gateway datasets list",
        "larder-gateway datasets pin imagenet-train",
        "larder-gateway datasets quota imagenet-train 40GB",
        "larder-gateway datasets auto imagenet-train",
    )
    add_list(commands, "datasets", "list the datasets", listing("datasets", COLUMNS))
    shown = subcommand(
        commands,
        "show",
        "show one dataset with its plan",
        answering(lambda admin, options: admin.get(path("datasets", find(admin, options.dataset))), _show),
        "larder-gateway datasets show imagenet-train",
    )
    add_overrides(commands, OVERRIDDEN, _NAMED, _MEANING)
    shown.add_argument("dataset", metavar=_NAMED, help=_MEANING)


def find(admin: Admin, wanted: str) -> str:
    """The id of the one dataset with this name or beginning of an id, as the gateway lists it.

    Raises:
        LarderError: there is no such dataset, or more than one.
    """
    known = list(admin.listed("datasets"))
    matching = [dataset for dataset in known if wanted in dataset.get("names", ())]
    matching = matching or [dataset for dataset in known if _same(str(dataset.get("id")), wanted)]
    if not matching:
        raise LarderError(f"unknown dataset {wanted!r}; see {hint('datasets', 'list')}")
    if len(matching) > 1:
        raise LarderError(
            f"{wanted!r} is ambiguous: give the id, one of {', '.join(str(dataset['id']) for dataset in matching)}"
        )
    return str(matching[0]["id"])


def _same(listed_id: str, wanted: str) -> bool:
    """Whether either id is a prefix of the other: lists show only the first digits."""
    return len(wanted) >= 4 and (listed_id.startswith(wanted) or wanted.startswith(listed_id))


def _name(registration: Mapping[str, Any]) -> str:
    return f"{registration.get('tenant')}/{registration.get('name')}"


def _show(_options: Namespace, dataset: Mapping[str, Any]) -> None:
    inputs, override = (dataset.get(name) or {} for name in ("inputs", "override"))
    registrations = dataset.get("registered") or ()
    registered = [_name(registration) for registration in registrations]
    recorded = [_name(registration) for registration in registrations if registration.get("listing") == "immutable"]
    facts(
        (
            ("dataset", listed(registered) or listed(dataset.get("names"))),
            ("id", dataset.get("full_id") or dataset.get("id")),
            ("listings", f"recorded: {listed(recorded)}" if recorded else "forward"),
            ("items", number(dataset.get("items"))),
            ("bytes", size(dataset.get("bytes"))),
            ("caching", dataset.get("caching")),
            ("why", dataset.get("why")),
            ("override", override.get("mode") or "none: the manager decides"),
            ("quota", size(override.get("quota"))),
            ("granted", size(dataset.get("granted"))),
            ("resident", share(dataset.get("resident_share"))),
            ("inputs", named(inputs)),
        )
    )
    if dataset.get("jobs"):
        line()
        table(jobs.COLUMNS, dataset["jobs"])
    if dataset.get("importance"):
        _show_importance(dataset["importance"])


def _show_importance(importance: Mapping[str, Any]) -> None:
    """Threshold, ghost list and jobs, and a row for each tenth of the scored items, the most important first."""
    threshold = importance.get("threshold")
    weights = importance.get("jobs") or {}
    line()
    facts(
        (
            ("kept by", "importance, in part" if importance.get("partial") else "importance"),
            ("threshold", "none: all that is scored fits" if threshold is None else f"{threshold:g}"),
            ("scores kept", number(importance.get("scored"))),
            ("jobs", listed([f"{job} {share(weight)}" for job, weight in weights.items()])),
        )
    )
    tenths = [
        {"items": f"tenth {place}", **row} for place, row in enumerate(reversed(importance.get("tenths") or ()), 1)
    ]
    line()
    table(_TENTHS, [*tenths, {"items": "not scored", **(importance.get("unscored") or {})}])
