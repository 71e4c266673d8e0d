"""Completion of the command line by a shell: commands, options, and names, which come from the gateway that the line names.

argcomplete runs the program for each press of the tab key, so the same grammar serves bash, zsh and fish, and names are as fresh
as the gateway's answer. If the gateway does not answer at once, no names are offered.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from argcomplete import autocomplete

from gateway.commands.common.connection import Admin, connected
from gateway.model.errors import LarderError

_PATIENCE = 1.0
"""Seconds to wait for an answer: the user is waiting at a prompt."""
_SHORT = 12
"""Digits of the fingerprints of results."""
Names = Callable[[Admin], Iterable[str]]


def complete(grammar: ArgumentParser) -> None:
    """Answer the shell's request in the environment's variables, and end the process."""
    _add_names(grammar, "")
    autocomplete(grammar, always_complete_options=False)


def _add_names(parser: ArgumentParser, group: str) -> None:
    """Let arguments complete names; ``group`` is the command that the parser belongs to."""
    creates = parser.prog.endswith((" create", " record"))
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, command in action.choices.items():
                _add_names(command, group or name)
        elif (names := _names(action, group)) is not None and (action.option_strings or not creates):
            action.completer = _completer(names)  # type: ignore[attr-defined]


def _names(action: Action, group: str) -> Names | None:
    """The possible names for an argument, by its word in the grammar."""
    if action.metavar in ("NAME", "ID"):
        kind = f"{action.dest}s" if action.option_strings and action.metavar == "NAME" else group
        return _BY_GROUP.get((kind, action.metavar))
    return _BY_WORD.get(str(action.metavar))


def _completer(names: Names) -> Callable[..., list[str]]:
    def completed(*, parsed_args: Namespace, **_: Any) -> list[str]:
        with suppress(LarderError), connected(parsed_args, timeout=_PATIENCE) as admin:
            return sorted(set(names(admin)))
        return []

    return completed


def _field(plural: str, name: str) -> Names:
    return lambda admin: (str(row[name]) for row in admin.listed(plural) if row.get(name))


def _datasets(admin: Admin) -> Iterator[str]:
    for row in admin.listed("datasets"):
        yield from row.get("names") or [str(row.get("id"))]


def _jobs(admin: Admin) -> Iterator[str]:
    return (f"{row.get('tenant')}/{row.get('job')}" for row in admin.listed("jobs"))


def _results(admin: Admin) -> Iterator[str]:
    return (str(row.get("fingerprint"))[:_SHORT] for row in admin.listed("results"))


def _places(admin: Admin) -> Iterator[str]:
    """Buckets and prefixes that were read recently."""
    yield from (str(row["name"]) for row in admin.listed("streams"))
    traffic = admin.get("traffic")
    yield from (f"{row['bucket']}/" for row in traffic.get("buckets", ()))
    yield from (f"{row['bucket']}/{row['prefix']}" for row in traffic.get("misses", ()))


_BY_WORD = {
    "NAME|ID": _datasets,
    "[TENANT/]JOB": _jobs,
    "NODE": _field("nodes", "id"),
    "ACCESS_KEY": _field("credentials", "access_key_id"),
    "STREAM": _field("streams", "name"),
    "PREFIX": _field("streams", "name"),
    "RESULTS": _results,
    "PROBLEM": _field("problems", "name"),
    "BUCKET/PREFIX": _places,
    "BUCKET/KEY": _places,
}
_BY_GROUP = {
    ("origins", "NAME"): _field("origins", "name"),
    ("tenants", "NAME"): _field("tenants", "name"),
    ("tokens", "NAME"): _field("tokens", "name"),
    ("profiles", "NAME"): _field("profiles", "name"),
    ("warm", "ID"): _field("warmups", "id"),
    ("verify", "ID"): _field("verifications", "id"),
}
