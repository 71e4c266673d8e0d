"""``pin``, ``never``, ``auto`` and ``quota``: an operator's decisions in place of the plan, on datasets and results."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.commands.common.connection import Admin
from gateway.commands.common.grammar import Run, subcommand
from gateway.commands.common.grammar import size as number_of_bytes
from gateway.commands.common.output import line, printable, size
from gateway.commands.common.resources import answering


@dataclass(frozen=True, slots=True)
class Overridden:
    """What is overridden: datasets or results.

    Args:
        command: the group of the subcommands, such as ``datasets``.
        argument: the subcommands' positional argument, a name.
        example: an example of that name, for the help.
        pin: help text of ``pin``; ``never`` and ``quota``: likewise.
        address: maps a name to its address in the admin API. Raises LarderError.
    """

    command: str
    argument: str
    example: str
    pin: str
    never: str
    quota: str
    address: Callable[[Admin, str], str]


def add_overrides(commands: Any, what: Overridden, metavar: str, meaning: str) -> None:
    """Define the four subcommands; ``metavar`` and ``meaning`` describe their positional argument."""
    called = f"larder-gateway {what.command}"
    decided = [
        subcommand(commands, word, summary, _override(what, changes, word), f"{called} {word} {what.example}")
        for word, summary, changes in (
            ("pin", what.pin, {"mode": "pin"}),
            ("never", what.never, {"mode": "never"}),
            ("auto", "let the plan decide again", {"mode": None, "quota": None}),
        )
    ]
    bounded = subcommand(
        commands,
        "quota",
        what.quota,
        _override(what, None),
        f"{called} quota {what.example} 40GB",
        f"{called} quota {what.example} none",
    )
    for parser in (*decided, bounded):
        parser.add_argument(what.argument, metavar=metavar, help=meaning)
    bounded.add_argument("bytes", metavar="SIZE|none", type=_bytes, help='bytes, such as "40GB"; none: no limit')


def _bytes(text: str) -> int | None:
    return None if text == "none" else number_of_bytes(text)


def _override(what: Overridden, changes: Mapping[str, Any] | None, word: str = "") -> Run:
    """A command that sets an override: ``changes``, or else the quota on the command line. Other fields stay unchanged, and a
    concurrent change is not overwritten."""

    def ask(admin: Admin, options: Namespace) -> Any:
        address = what.address(admin, getattr(options, what.argument))
        before = admin.get(address).get("override") or {}
        kept = {"mode": before.get("mode"), "quota": before.get("quota")}
        wanted = {**kept, **({"quota": options.bytes} if changes is None else changes)}
        return admin.ask("PUT", f"{address}/override", wanted, etag=before.get("etag"))

    def tell(options: Namespace, _answer: object) -> None:
        decision = word or ("no quota" if options.bytes is None else f"a quota of {size(options.bytes)}")
        line(f"{printable(getattr(options, what.argument))}: {decision}, from the next plan on")

    return answering(ask, tell)
