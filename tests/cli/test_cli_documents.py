"""docs/cli.md has every command with every option, and its examples are accepted unchanged."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from gateway import cli
from larder import grammar

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
PARSERS = {"larder-gateway": cli.parser(*(command.name for command in cli.COMMANDS)), "larder": grammar.parser()}
COMMAND = re.compile(r"(?:^|\s|\()(larder(?:-gateway)? [^|>;)\n]+)")


def commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser's commands at every level, but for the word help."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                if name != "help":
                    found += [command, *commands(command)]
    return found


EVERY = {command.prog: command for parser in PARSERS.values() for command in commands(parser)}


def section(program: str) -> str:
    """The page's section of a command."""
    found = re.search(rf"^(#+) `{re.escape(program)}[` ].*?(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return found[0] if found else ""


@pytest.mark.parametrize("program", EVERY)
def test_every_command_is_on_the_page(program):
    """Rule: each command has a section with its options and arguments; common ones are explained at the top."""
    text = section(program)
    assert text, "run `make docs`"
    words = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text + PAGE.partition("## `larder-gateway`")[0]))
    options = {option for action in EVERY[program]._actions for option in action.option_strings} - {"-h", "--help"}
    assert options - words == set()


def test_every_example_is_accepted():
    """Rule: each example of the two programs, on the page and in the help, parses."""
    texts = [PAGE, *(command.epilog or "" for command in EVERY.values())]
    lines = {match for text in texts for match in COMMAND.findall(re.sub(r"`[^`\n]*`", "", text))}
    typed = [line for line in lines if not line.startswith(("larder-gateway help", "larder help"))]
    assert len(typed) > 40
    for line in typed:
        program, *words = shlex.split(line)
        if program == "larder-gateway":
            words = list(cli.completed(words))
        PARSERS[program].parse_args(words)


@pytest.mark.parametrize("program", EVERY)
def test_every_command_has_words_for_all_it_takes(program):
    """Rule: each command has a description, and each argument a meaning."""
    command = EVERY[program]
    assert command.description
    assert [action.dest for action in command._actions if not action.help and action.metavar != "COMMAND"] == []
