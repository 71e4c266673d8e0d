"""``larder-gateway rules``."""

from __future__ import annotations

import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.commands.connection import connected
from gateway.commands.grammar import place, subcommand, subcommands
from gateway.commands.output import Column, age, document, line, printable, table
from gateway.model.errors import ConfigError

_COLUMNS = (
    Column("position", number=True),
    Column("match"),
    Column("freshness"),
    Column("cache"),
    Column("authorization"),
    Column("grant"),
    Column("stale if error"),
    Column("warm on write"),
    Column("source"),
    Column("problem"),
)
_CHECKED = (
    Column("position", number=True),
    Column("match"),
    Column("source"),
    Column("verdict"),
    Column("why"),
    Column("example"),
)
_DEFAULTS = "no rule holds: it is cached, and checked after 10 minutes"


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    commands = subcommands(
        command,
        "Caching rules. They are tried in order, and the first that matches bucket/key holds: those that were set here come\n"
        "before those of the configuration files.",
        "larder-gateway rules list",
        "larder-gateway rules check datasets/imagenet/train/0001.jpg",
    )
    subcommand(commands, "list", "list the rules in their order", _list, "larder-gateway rules list --json")
    checked = subcommand(
        commands,
        "check",
        "say which rule holds for an object, or which rules match nothing",
        _check,
        "larder-gateway rules check datasets/imagenet/train/0001.jpg",
        "# exit status 1 if a rule matches nothing that there is, or nothing that the rules before it leave",
        "larder-gateway rules check",
        "larder-gateway rules check --file rules.toml",
    )
    checked.add_argument("place", metavar="BUCKET/KEY", nargs="?", type=place, help="an object; without one, all rules")
    checked.add_argument("--file", metavar="FILE", type=Path, help="rules to check instead of those that were set here")
    replaced = subcommand(
        commands,
        "replace",
        "set the rules that come before those of the configuration files",
        _replace,
        "larder-gateway rules replace rules.toml",
    )
    replaced.add_argument(
        "file", metavar="FILE", type=Path, help="TOML with [[rules]] as in a configuration; without any: remove all"
    )


def _list(options: Namespace) -> int:
    with connected(options) as admin:
        answer = admin.get("rules")
    if options.json:
        document(answer)
    else:
        _show(answer["items"])
    return 0


def _show(rules: Iterable[Mapping[str, Any]]) -> None:
    table(_COLUMNS, map(_row, rules), _DEFAULTS)


def _row(rule: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        rule.get("position"),
        rule.get("match"),
        _freshness(rule),
        "yes" if rule.get("cache") else "no",
        rule.get("authorization"),
        age(rule.get("grant")),
        age(rule.get("stale_if_error")),
        "yes" if rule.get("warm_on_write") else "no",
        rule.get("source"),
        rule.get("problem") or None,
    )


def _freshness(rule: Mapping[str, Any]) -> object:
    kept = rule.get("freshness")
    return age(kept) if isinstance(kept, int | float) else kept


def _check(options: Namespace) -> int:
    body: dict[str, Any] = {} if options.file is None else {"items": _read(options.file)}
    if options.place is not None:
        bucket, key = options.place
        if not key:
            raise ConfigError("BUCKET/KEY: name an object; a rule may hold for a part of a bucket only")
        body = {**body, "bucket": bucket, "key": key, "reach": False}
    with connected(options) as admin:
        answer = admin.ask("POST", "rules/check", body)
    rules = answer["items"]
    if options.json:
        document(answer)
    elif options.place is not None:
        _tell(answer.get("position"), rules)
    else:
        table(_CHECKED, map(_verdict, rules), "no rules")
    wrong = options.place is None and any(rule.get("verdict") in ("nothing", "hidden") for rule in rules)
    return 1 if wrong else 0


def _tell(position: int | None, rules: Sequence[Mapping[str, Any]]) -> None:
    if position is None:
        line(_DEFAULTS)
        return
    rule = rules[position]
    line(printable(f"rule {position} holds: {rule.get('match')} ({rule.get('source')})"))


def _verdict(rule: Mapping[str, Any]) -> tuple[object, ...]:
    said = (rule.get("why") or None, rule.get("example") or None)
    return rule.get("position"), rule.get("match"), rule.get("source"), rule.get("verdict"), *said


def _replace(options: Namespace) -> int:
    rules = _read(options.file)
    with connected(options) as admin:
        # The version that is there now: of two who replace at the same moment, one is told so.
        answer = admin.ask("PUT", "rules", {"items": rules}, etag=admin.get("rules").get("etag"))
    if options.json:
        document(answer)
    else:
        _show(answer["items"])
    return 0


def _read(file: Path) -> list[Any]:
    """The rules of a file.

    Raises:
        ConfigError: it cannot be read, or has something else in it.
    """
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: is not valid TOML: {error}") from None
    if strange := sorted(tree.keys() - {"rules"}):
        raise ConfigError(
            f"{file}: has {', '.join(strange)} beside [[rules]]; these can only be set by serve's configuration"
        )
    rules = tree.get("rules", [])
    if not isinstance(rules, list):
        raise ConfigError(f"{file}: rules must be written as [[rules]]")
    return rules
