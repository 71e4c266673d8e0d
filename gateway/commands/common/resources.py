"""Commands that send one request and print its answer: lists, and changes of their records."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.commands.common.connection import Admin, connected, path
from gateway.commands.common.grammar import Run, pages, subcommand
from gateway.commands.common.output import PROGRAM, Column, document, line, printable, table
from gateway.model.errors import ConfigError

Ask = Callable[[Admin, Namespace], Any]
Tell = Callable[[Namespace, Any], object]
Status = Callable[[Namespace, Any], int]


def answering(ask: Ask, tell: Tell, status: Status = lambda _options, _answer: 0) -> Run:
    """A command that prints the result of ``ask`` by ``tell``, or as JSON with ``--json``, and exits with ``status``."""

    def run(options: Namespace) -> int:
        with connected(options) as admin:
            answer = ask(admin, options)
        if options.json:
            document(answer)
        else:
            tell(options, answer)
        return status(options, answer)

    return run


def listing(plural: str, columns: Sequence[Column], empty: str = "", filters: Sequence[str] = ()) -> Run:
    """A command that prints a list, or ``empty``; ``filters`` are options of the same names as parameters of the query."""

    def ask(admin: Admin, options: Namespace) -> dict[str, Any]:
        return {
            "items": list(admin.listed(plural, options.limit, **{name: getattr(options, name) for name in filters}))
        }

    return answering(ask, lambda _, answer: table(columns, answer["items"], empty or f"no {plural}"))


def add_list(commands: Any, plural: str, summary: str, run: Run, example: str = "--json") -> ArgumentParser:
    """Add the subcommand ``list``."""
    command = subcommand(commands, "list", summary, run, f"{PROGRAM} {plural} list {example}")
    pages(command, 0)
    return command


def posting(plural: str, verb: str, tell: Tell, body: Callable[[Namespace], object] = lambda _: {}) -> Run:
    """A command that posts to one record, named by the option ``name``."""
    return answering(lambda admin, options: admin.ask("POST", path(plural, options.name, verb), body(options)), tell)


def creating(plural: str, fields: Callable[[Namespace], Mapping[str, Any]], tell: Tell) -> Run:
    """A command that creates a record; fields that are ``None`` are left out."""

    def ask(admin: Admin, options: Namespace) -> Any:
        return admin.ask("POST", plural, {name: value for name, value in fields(options).items() if value is not None})

    return answering(ask, tell)


def changing(
    plural: str, fields: Callable[[Namespace], Mapping[str, Any]], options: str = "an option; --help lists them"
) -> Run:
    """A command that changes fields of a record, named by the option ``name``; fields that are ``None`` stay unchanged.
    ``options`` names the command's options for fields."""

    def ask(admin: Admin, given: Namespace) -> Any:
        changes = {name: value for name, value in fields(given).items() if value is not None}
        if not changes:
            raise ConfigError(f"nothing to change: give {options}")
        return admin.ask("PATCH", path(plural, given.name), changes)

    return answering(ask, says("changed"))


def deleting(plural: str, word: str = "removed") -> Run:
    """A command that deletes a record, named by the option ``name``; ``word`` confirms it."""

    def ask(admin: Admin, options: Namespace) -> dict[str, str]:
        admin.ask("DELETE", path(plural, options.name))
        return {word: options.name}

    return answering(ask, says(word))


def says(word: str) -> Tell:
    """A function that prints the option ``name`` and a word, such as "created"."""
    return lambda options, _: line(f"{printable(options.name)} is {word}")
