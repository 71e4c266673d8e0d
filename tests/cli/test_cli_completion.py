"""Completion of the command line: what bash proposes with the printed script, and the names that a gateway is asked for."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.commands import OPERATOR, WITHIN, environment, propose, run
from tests.cli.fake_admin import FakeAdmin


@pytest.mark.parametrize(
    ("line", "proposed"),
    [("sta", "status"), ("nodes dr", "drain"), ("nodes drain --en", "--endpoint"), ("completion fi", "fish")],
)
def test_commands_and_options(line: str, proposed: str) -> None:
    """Rule: commands, their subcommands, options and choices are completed without a gateway."""
    assert propose(f"larder-gateway {line}") == [proposed]


@pytest.mark.parametrize(
    ("line", "address", "items", "proposed"),
    [
        ("datasets show ima", "datasets", [{"names": ["imagenet"]}, {"names": ["coco"]}], ["imagenet"]),
        ("jobs show vi", "jobs", [{"tenant": "vision", "job": "resnet50"}], ["vision/resnet50"]),
        ("nodes drain ", "nodes", [{"id": "node-1"}, {"id": "node-2"}], ["node-1", "node-2"]),
        ("origins change ", "origins", [{"name": "default"}], ["default"]),
        ("credentials create --tenant ", "tenants", [{"name": "vision"}], ["vision"]),
        ("warm --as ", "credentials", [{"access_key_id": "GWVISION"}], ["GWVISION"]),
        ("warm --dataset ", "datasets", [{"names": ["imagenet"]}], ["imagenet"]),
        ("warm --cancel ", "warmups", [{"id": "5f2c"}], ["5f2c"]),
        ("results show ", "results", [{"fingerprint": "ab" * 32}], ["ab" * 6]),
    ],
)
def test_names(
    line: str,
    address: str,
    items: list[dict[str, object]],
    proposed: list[str],
    admin: FakeAdmin,
    variables: dict[str, str],
) -> None:
    """Rule: a name is completed from the gateway's list of its kind."""
    admin.answers[f"GET {address}"] = {"items": items}
    assert propose(f"larder-gateway {line}", **variables) == proposed


def test_places(admin: FakeAdmin, variables: dict[str, str]) -> None:
    """Rule: a place is completed from the prefixes and buckets that were read lately."""
    admin.answers["GET streams"] = {"items": [{"name": "photos/train/"}]}
    admin.answers["GET traffic"] = {"buckets": [{"bucket": "photos"}], "misses": [{"bucket": "logs", "prefix": "a/"}]}
    assert propose("larder-gateway warm ", **variables) == ["logs/a/", "photos/", "photos/train/"]


def test_the_gateway_of_the_line_is_asked(admin: FakeAdmin, variables: dict[str, str]) -> None:
    """Rule: --endpoint on the line wins over the variable, as for the command itself."""
    admin.answers["GET nodes"] = {"items": [{"id": "node-1"}]}
    away = {**variables, "LARDER_ENDPOINT": "http://127.0.0.1:1"}
    assert propose(f"larder-gateway nodes drain --endpoint {admin.endpoint} n", **away) == ["node-1"]


@pytest.mark.parametrize(
    "variables",
    [{}, {"LARDER_ENDPOINT": "http://127.0.0.1:1"}, {"LARDER_ENDPOINT": "no address"}],
    ids=["no gateway", "a gateway that is down", "a wrong address"],
)
def test_silence(variables: dict[str, str]) -> None:
    """Rule: without an answer there are no names, and no message either."""
    assert propose("larder-gateway nodes drain n", **variables) == []


def test_a_new_name_is_not_proposed(admin: FakeAdmin, variables: dict[str, str]) -> None:
    """Rule: a command that creates a record does not propose the names of others."""
    admin.answers["GET tenants"] = {"items": [{"name": "vision"}]}
    assert propose("larder-gateway tenants create vis", **variables) == []


def test_fish_gets_a_description_beside_each_command() -> None:
    """Rule: the script for fish calls the program with these variables, and shows what comes: words with their meaning."""
    script = run("completion", "fish").out
    assert "complete --command larder-gateway -f -a '(__fish_larder-gateway_complete)'" in script
    line = "larder-gateway sta"
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "fish",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_DFS": "\t",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }
    assert all(f"set -lx {name} " in script for name in variables)
    ran = subprocess.run(
        ["bash", "-c", 'exec "$@" 8>&1 1>/dev/null', "bash", *OPERATOR],
        capture_output=True,
        text=True,
        env=environment(**variables, COMP_LINE=line, COMP_POINT=str(len(line))),
        timeout=WITHIN,
        check=False,
    )
    assert ran.stdout.rstrip("\n") == "status\tthe fleet's current traffic and problems"
