"""docs/cli.md has every command with an example; the examples of the page and of the help are accepted unchanged."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from gateway import cli
from gateway.admin.endpoints import routers
from gateway.operate.features import FEATURES
from larder import grammar
from tests.described import operations_of

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


CHANGES = {
    "POST /tenants": "tenants create",
    "PATCH /tenants/{name}": "tenants limit",
    "DELETE /tenants/{name}": "tenants remove",
    "POST /credentials": "credentials create",
    "PATCH /credentials/{access_key_id}": "credentials change",
    "DELETE /credentials/{access_key_id}": "credentials remove",
    "POST /credentials/{access_key_id}/rotate": "credentials rotate",
    "POST /credentials/{access_key_id}/revoke": "credentials revoke",
    "POST /origins": "origins create",
    "PATCH /origins/{name}": "origins change",
    "DELETE /origins/{name}": "origins remove",
    "PUT /rules": "rules replace",
    "POST /rules/check": "rules check",
    "POST /tokens": "tokens create",
    "PATCH /tokens/{name}": "tokens change",
    "DELETE /tokens/{name}": "tokens revoke",
    "POST /nodes/{node}/drain": "nodes drain",
    "POST /nodes/{node}/undrain": "nodes undrain",
    "DELETE /nodes/{node}": "nodes dismiss",
    "PUT /datasets/{dataset}/override": "datasets pin",
    "DELETE /jobs/{tenant}/{job}": "jobs remove",
    "PUT /pipelines/{tenant}/{job}/override": "pipelines pin",
    "PUT /streams/{name}/override": "streams pin",
    "PUT /results/{pool}/override": "results pin",
    "POST /warmups": "warm",
    "POST /warmups/{warmup}/cancel": "warm",
    "POST /warmups/{warmup}/resume": "warm",
    "POST /profiles": "profiles record",
    "POST /profiles/{profile}/stop": "profiles stop",
    "DELETE /profiles/{profile}": "profiles delete",
    "PUT /problems/{name}/mute": "problems mute",
    "DELETE /problems/{name}/mute": "problems unmute",
    "POST /purge": "purge",
    "POST /verifications": "verify",
}
"""Commands by the change of the admin API that they send."""


LEAVES = [name for name in EVERY if not any(other.startswith(f"{name} ") for other in EVERY)]
"""Commands that do something; the others hold commands. Of one with two names, both."""


@pytest.mark.parametrize("program", LEAVES)
def test_every_command_has_a_row_with_an_example(program):
    """Rule: each command has a row with an example of it and its purpose; its options are in its help."""
    section = PAGE.partition(f"## `{program.partition(' ')[0]}`\n")[2].partition("\n## ")[0]
    rows = [re.split(r" \| | \|$", line) for line in section.splitlines() if line.startswith("| `")]
    purposes = [purpose for example, purpose, _ in rows if f"{program} " in f"{example.strip('`')} "]
    assert purposes, "run `make docs`"
    assert purposes[0]


def test_options_of_all_commands_are_explained_at_the_top():
    """Rule: an option that most commands have is on the page, before the tables."""
    top = PAGE.partition("## `larder-gateway`")[0]
    for first in PARSERS:
        own = [name for name in LEAVES if name.startswith(f"{first} ")]
        for option in {text for name in own for action in EVERY[name]._actions for text in action.option_strings}:
            having = [name for name in own if option in EVERY[name]._option_string_actions]
            assert 2 * len(having) < len(own) or option in ("-h", "--help") or f"`{option}" in top, option


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


def test_every_change_of_the_admin_api_has_a_command():
    """Rule: what a program can change, the command line can; a new endpoint gets its command here."""
    changes = {f"{method} {path}" for router in routers(FEATURES) for method, path in operations_of(router.routes)}
    assert {change for change in changes if not change.startswith("GET ")} == CHANGES.keys()
    assert [command for command in CHANGES.values() if f"larder-gateway {command}" not in EVERY] == []


@pytest.mark.parametrize("program", EVERY)
def test_every_command_has_words_for_all_it_takes(program):
    """Rule: each command has a description, and each argument a meaning."""
    command = EVERY[program]
    assert command.description
    assert [action.dest for action in command._actions if not action.help and action.metavar != "COMMAND"] == []
