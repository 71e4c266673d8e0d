"""Output of ``larder-gateway``: at a terminal, into a pipe, and to readers that leave early."""

from __future__ import annotations

import os
import subprocess

import pytest

from gateway.cli import COMMANDS, GROUPS, main
from rig.processes import spawn
from tests.cli.commands import OPERATOR, at_terminal, environment, run
from tests.cli.fake_admin import OVERVIEW

ESCAPE = "\x1b["


def test_columns_for_programs(operator):
    """Rule: where no terminal is, a table is a heading and rows that are never cut off, without colours or lines."""
    ran = operator("status", COLUMNS="20")
    heading, first, *_ = [line for line in ran.out.splitlines() if "node" in line.lower()]
    assert heading.split() == [
        "NODE",
        "ADDRESS",
        "STATE",
        "USED",
        "CAPACITY",
        "FILL",
        "BLOBS",
        "DISK",
        "REDIS",
        "VERSION",
        "UP",
    ]
    assert first.split()[:3] == ["node-1", "http://10.0.0.11:9000", "READY"]
    assert "25.0%" in first
    assert ESCAPE not in ran.out


def test_the_numbers_of_an_overview(operator):
    """Rule: status has request and item rates, hit ratio, saved bytes, the gain of jobs, and the space of datasets."""
    out = operator("status").out
    for part in (
        "12.5/s, 100,000 in all",
        "2,310.5/s, 3,120,448 in all",
        "91.2% of all bytes",
        "900.0 GB of 1.0 TB sent",
        "vision/resnet50",
        "2.30x",
        "28.0 GB",
    ):
        assert part in out
    assert "no problems" in out


def test_a_terminal_has_colours(variables):
    """Rule: at a terminal states have colours."""
    ran = at_terminal("status", variables=variables)
    assert ran.status == 0
    assert f"{ESCAPE}32mREADY" in ran.out
    assert f"{ESCAPE}31mdown" in ran.out


@pytest.mark.parametrize("without", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours(variables, without):
    """Rule: NO_COLOR, or a dumb terminal, gets text without escape sequences."""
    ran = at_terminal("status", variables={**variables, **without})
    assert ran.status == 0
    assert "READY" in ran.out
    assert ESCAPE not in ran.out


def test_a_narrow_terminal(variables):
    """Rule: a table that does not fit is a list for each row; neither a heading nor a number nor a name is folded or left out."""
    ran = at_terminal("status", variables={**variables, "COLUMNS": "80", "NO_COLOR": "1"})
    lines = [line.rstrip() for line in ran.out.splitlines()]
    assert max(map(len, lines)) <= 80
    told = [line.split(maxsplit=1) for line in lines]
    for fact in (["address", "http://10.0.0.11:9000"], ["state", "LEAVING"], ["capacity", "1.0 GB"], ["up", "1 d 2 h"]):
        assert fact in told


def test_a_refreshed_screen_keeps_its_first_lines(admin, variables):
    """Rule: top shows as much as the terminal has lines, with the problems first, instead of scrolling them away."""
    problem = {"severity": "error", "what": "The disk is down.", "remedy": "Replace it."}
    answers = iter([(200, {**OVERVIEW, "problems": [problem]})])
    admin.answers["GET overview"] = lambda _asked: next(answers, (503, {"code": "x", "detail": "ended"}))
    ran = at_terminal("top", "--every", "10ms", variables={**variables, "LINES": "8", "NO_COLOR": "1"})
    screen = ran.out.partition("zone")[2].partition(ESCAPE)[0].splitlines()
    assert len(screen) == 7
    assert [" ".join(line.split()) for line in screen[1:3]] == ["error: The disk is down.", "Replace it."]


def test_a_watched_status_is_refreshed(admin, variables):
    """Rule: status --watch shows the fleet again and again; where there is no terminal it is printed once."""
    answers = iter([(200, OVERVIEW), (200, {**OVERVIEW, "zone": "rack-2"})])
    admin.answers["GET overview"] = lambda _asked: next(answers, (503, {"code": "x", "detail": "ended"}))
    ran = at_terminal("status", "--watch", "10ms", variables={**variables, "NO_COLOR": "1"})
    assert ["rack-1" in ran.out, "rack-2" in ran.out, ran.status] == [True, True, 1]
    admin.answers["GET overview"] = OVERVIEW
    assert run("status", "--watch", **variables).out.count("zone") == 1


def test_names_cannot_command_a_terminal(admin, operator):
    """Rule: unprintable characters of a name are escaped: they cannot move the cursor or begin a line."""
    nodes = [{**OVERVIEW["nodes"][0], "id": "a\x1b[2J\nnode-9  READY"}]
    admin.answers["GET overview"] = {**OVERVIEW, "nodes": nodes}
    out = operator("status").out
    assert "a\\x1b[2J\\nnode-9  READY" in out
    assert "\x1b" not in out


def test_markup_in_names_is_text(admin, variables):
    """Rule: brackets and colons in a name are printed, not interpreted as markup."""
    nodes = [{**OVERVIEW["nodes"][0], "id": "[red]a[/red] :smile:"}]
    admin.answers["GET overview"] = {**OVERVIEW, "nodes": nodes}
    assert "[red]a[/red] :smile:" in at_terminal("status", variables={**variables, "NO_COLOR": "1"}).out


def test_a_terminal_that_knows_ascii_only(admin, variables):
    """Rule: a character outside the terminal's encoding is escaped and does not stop the command."""
    admin.answers["GET overview"] = {**OVERVIEW, "zone": "Größe 🙂"}
    ran = run("status", PYTHONIOENCODING="ascii", **variables)
    assert ran.status == 0
    assert "zone Gr\\xf6\\xdfe" in ran.out


def test_a_reader_that_leaves(admin, variables):
    """Rule: ``| head`` causes no traceback, even for a long output."""
    node = OVERVIEW["nodes"][0]
    admin.answers["GET overview"] = {**OVERVIEW, "nodes": [{**node, "id": f"node-{number}"} for number in range(5000)]}
    process = spawn(
        [*OPERATOR, "status"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**variables)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "zone rack-1, Larder 0.5.0\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 1


def test_a_full_disk(variables):
    """Rule: a failed write of the result is reported in one line."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*OPERATOR, "status", "--json"], stdout=full, stderr=subprocess.PIPE, text=True,
            env=environment(**variables), check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "larder-gateway: No space left on device\n")


def test_no_standard_output_at_all(variables):
    """Rule: a closed standard output loses the result only."""
    command = f"{' '.join(OPERATOR)} status >&-"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, env=environment(**variables), check=False
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_of_every_command(command, capsys):
    """Rule: help COMMAND and COMMAND --help print the same purpose and usage."""
    said = []
    for words in (["help", command], [command, "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].startswith(f"usage: larder-gateway {command} ")
    assert f"\n  larder-gateway {command} " in said[0]


def test_help_alone_lists_all_commands(capsys):
    """Rule: help lists every command with its summary below the heading of its group, and the exit statuses."""
    with pytest.raises(SystemExit):
        main(["help"])
    text = capsys.readouterr().out
    assert all(command.name in text and command.summary in text for command in COMMANDS)
    lines = text.splitlines()
    assert [line for line in lines if line.rstrip(":") in GROUPS] == [f"{group}:" for group in GROUPS]
    assert "130 Ctrl-C" in text


@pytest.mark.parametrize("words", [[], ["nix"], ["nodes", "nix"], ["status", "--nix"], ["help", "nix"]])
def test_wrong_usage(words, capsys):
    """Rule: an unknown command or option ends with 2 and a list of the known ones."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: larder-gateway" in capsys.readouterr().err


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.usual])
def test_the_usual_subcommand(command, admin, operator):
    """Rule: a group of commands without one lists, with the options of the list."""
    admin.answers[f"GET {command.name}"] = {"items": [], "next": None}
    ran = operator(command.name, "--json")
    assert ran.status == 0
    assert ran.json["items"] == []


def test_a_command_that_asks_loads_no_server():
    """Rule: commands that query a gateway do not import the server, so they answer at once; imported modules are exempt from
    garbage collection, later objects are not."""
    code = (
        "import gc, sys; from gateway.cli import main; main(['status', '--endpoint', 'http://127.0.0.1:9']); "
        "print(gc.isenabled(), gc.get_freeze_count() > 0); "
        "print({'fastapi', 'uvicorn', 'aiohttp', 'sqlalchemy', 'pydantic'} & set(sys.modules))"
    )
    ran = run("-c", code, program=(OPERATOR[0],), PATH=os.environ["PATH"])
    assert ran.out == "True True\nset()\n"


def test_a_configuration_is_read_before_the_gateway_is_imported():
    """Rule: a wrong configuration is refused without the gateway; prometheus_client, which decides at its import whether
    workers share values, is imported when the number of workers is known."""
    code = (
        "import sys, gateway.local.serving; print({'gateway.app', 'fastapi', 'prometheus_client'} & set(sys.modules))"
    )
    assert run("-c", code, program=(OPERATOR[0],)).out == "set()\n"


def test_variables_of_the_commands_are_no_settings(tmp_path):
    """Rule: LARDER_ENDPOINT and LARDER_ADMIN_TOKEN, set for commands, do not prevent checking or starting a gateway."""
    config = tmp_path / "larder.toml"
    config.write_text('[[origins]]\nendpoint = "http://127.0.0.1:5000"\n')
    ran = run("check-config", str(config), LARDER_ENDPOINT="http://127.0.0.1:9000", LARDER_ADMIN_TOKEN="t")
    assert ran.status == 0
    assert ran.json["origins"][0]["endpoint"] == "http://127.0.0.1:5000"
