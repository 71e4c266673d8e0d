"""``larder-gateway rules``."""

from __future__ import annotations

import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.commands.common.connection import Admin
from gateway.commands.common.grammar import place, subcommand, subcommands
from gateway.commands.common.output import Column, age, line, printable, table
from gateway.commands.common.resources import answering
from gateway.model.errors import ConfigError


def _time(kept: object) -> object:
    return age(kept) if isinstance(kept, int | float) else kept


def _yes(flag: object) -> str:
    return "yes" if flag else "no"


_COLUMNS = (
    Column("position", number=True),
    Column("match"),
    Column("freshness", shown=_time),
    Column("cache", shown=_yes),
    Column("authorization"),
    Column("grant", shown=_time),
    Column("stale if error", shown=_time),
    Column("warm on write", shown=_yes),
    Column("listing"),
    Column("pattern"),
    Column("hedge"),
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
_DEFAULTS = "no rule applies: objects are cached, and checked after 10 minutes"


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Caching rules, in order: the first that matches bucket/key applies. Rules set here come before those of the\n"
        "configuration files.",
        "larder-gateway rules list",
        "larder-gateway rules check datasets/imagenet/train/0001.jpg",
    )
    subcommand(
        commands,
        "list",
        "list the rules in their order",
        answering(lambda admin, _: admin.get("rules"), _show),
        "larder-gateway rules list --json",
    )
    checked = subcommand(
        commands,
        "check",
        "show which rule applies to an object, or which rules match no object",
        answering(_check, _tell, _wrong),
        "larder-gateway rules check datasets/imagenet/train/0001.jpg",
        "# exit status 1 if a rule matches no object, or is hidden by an earlier one",
        "larder-gateway rules check",
        "larder-gateway rules check --file rules.toml",
    )
    checked.add_argument("place", metavar="BUCKET/KEY", nargs="?", type=place, help="an object; without it, all rules")
    checked.add_argument("--file", metavar="FILE", type=Path, help="rules to check instead of the catalog's")
    replaced = subcommand(
        commands,
        "replace",
        "set the rules that come before those of the configuration files",
        answering(_replace, _show),
        "larder-gateway rules replace rules.toml",
    )
    replaced.add_argument(
        "file", metavar="FILE", type=Path, help="TOML with [[rules]] as in a configuration; an empty file removes all"
    )


def _show(_options: Namespace, answer: Mapping[str, Any]) -> None:
    table(_COLUMNS, answer["items"], _DEFAULTS)


def _check(admin: Admin, options: Namespace) -> Any:
    body: dict[str, Any] = {} if options.file is None else {"items": _read(options.file)}
    if options.place is not None:
        bucket, key = options.place
        if not key:
            raise ConfigError("BUCKET/KEY: name an object; a rule may apply to a part of a bucket")
        body = {**body, "bucket": bucket, "key": key, "reach": False}
    return admin.ask("POST", "rules/check", body)


def _tell(options: Namespace, answer: Mapping[str, Any]) -> None:
    rules, position = answer["items"], answer.get("position")
    if options.place is None:
        table(_CHECKED, rules, "no rules")
    elif position is None:
        line(_DEFAULTS)
    else:
        rule = rules[position]
        line(printable(f"rule {position} applies: {rule.get('match')} ({rule.get('source')})"))


def _wrong(options: Namespace, answer: Mapping[str, Any]) -> int:
    wrong = any(rule.get("verdict") in ("nothing", "hidden") for rule in answer["items"])
    return 1 if wrong and options.place is None else 0


def _replace(admin: Admin, options: Namespace) -> Any:
    # The etag makes the second of two concurrent replacements fail instead of undoing the first.
    rules = _read(options.file)
    return admin.ask("PUT", "rules", {"items": rules}, etag=admin.get("rules").get("etag"))


def _read(file: Path) -> list[Any]:
    """The rules of a file.

    Raises:
        ConfigError: the file is unreadable, or contains other tables.
    """
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: is not valid TOML: {error}") from None
    if strange := sorted(tree.keys() - {"rules"}):
        raise ConfigError(
            f"{file}: contains {', '.join(strange)} beside [[rules]]; these belong in the configuration of serve"
        )
    rules = tree.get("rules", [])
    if not isinstance(rules, list):
        raise ConfigError(f"{file}: rules must be written as [[rules]]")
    return rules
