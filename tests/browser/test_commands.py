"""What the console copies as a command: the command line that does what a dialog sends, or curl where there is none."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.cli import parser
from rig.gateways import Running
from tests.browser.chromium import PATIENCE, TOKEN, Watched
from tests.browser.console import admin, console, field, press

expect.set_options(timeout=PATIENCE)

AT = "http://gw:19000"
COPY = "Copy as command"
_LINES = """
async ([requests, at]) => {
  const { commandOf } = await import("/-/static/dashboard/commands.js");
  return requests.map((request) => commandOf(request, at));
}
"""
LINES: tuple[tuple[str, str, Any, str], ...] = (
    ("GET", "explain?bucket=b&key=a%20b%26c&access_key_id=K", None, "explain 'b/a b&c' --as K"),
    ("POST", "warmups", {"access_key_id": "K", "bucket": "b", "prefix": "it's/"}, "warm 'b/it'\\''s/' --as K"),
    ("POST", "warmups", {"access_key_id": "K", "bucket": "b", "key": "k"}, "warm b/k --exact --as K"),
    ("POST", "warmups", {"access_key_id": "K", "dataset": "d"}, "warm --dataset d --as K"),
    ("POST", "warmups", {"access_key_id": "K", "profile": "p"}, "profiles warm p --as K"),
    ("POST", "warmups/1f/cancel", None, "warm --cancel 1f"),
    ("POST", "warmups/1f/resume", None, "warm --resume 1f"),
    ("POST", "purge", {"bucket": "b", "key": "k", "dry_run": True}, "purge b/k --exact --dry-run"),
    ("POST", "purge", {"bucket": "b", "prefix": "a\nb", "dry_run": False}, "purge $'b/a\\nb'"),
    (
        "POST", "profiles", {"name": "n", "bucket": "b", "prefix": "", "access_key_id": "-K", "seconds": 90},
        "profiles record n b/ --as=-K --for 90s",
    ),
    ("POST", "profiles/n/stop", None, "profiles stop n"),
    ("DELETE", "profiles/n", None, "profiles delete n"),
    ("POST", "verifications", {"nodes": ["a", "b"]}, "verify --remote --node a --node b"),
    ("POST", "nodes/gw-1/drain", {"force": True}, "nodes drain gw-1 --force"),
    ("POST", "nodes/gw-1/undrain", None, "nodes undrain gw-1"),
    ("DELETE", "nodes/gw-1", None, "nodes dismiss gw-1"),
    ("DELETE", "jobs/team/job%201", None, "jobs remove 'team/job 1'"),
    ("PUT", "datasets/c41e/override", {"mode": None, "quota": None}, "datasets auto c41e"),
    ("PUT", "datasets/c41e/override", {"mode": "pin", "quota": None}, "datasets pin c41e && datasets quota c41e none"),
    ("PUT", "results/c41e/override", {"mode": None, "quota": 5}, "results auto c41e && results quota c41e 5"),
    ("PUT", "streams/b%2Fp%2F/override", {"mode": "pin", "bytes": 1000}, "streams pin b/p/ 1000"),
    ("PUT", "streams/b%2Fp%2F/override", {"mode": None, "bytes": None}, "streams auto b/p/"),
    ("PUT", "pipelines/t/j/override", {"mode": "pin", "mark": 3}, "pipelines pin t/j --mark 3"),
    ("PUT", "problems/redis%20gw-3/mute", {"seconds": 28800}, "problems mute 'redis gw-3' --for 28800s"),
    ("DELETE", "problems/redis%20gw-3/mute", None, "problems unmute 'redis gw-3'"),
    ("POST", "rules/check", {"bucket": "b", "key": "k"}, "rules check b/k"),
    ("POST", "rules/check", {"bucket": "", "key": ""}, "rules check"),
    (
        "POST", "credentials",
        {"description": "", "tenant": "t", "allow": ["b/**", "c/*"], "read_only": True, "expires": "", "origin": "default"},
        "credentials create --read-only --tenant t --allow 'b/**' --allow 'c/*' --origin default",
    ),
    ("PATCH", "credentials/K", {"allow": [], "read_only": False}, "credentials change K --no-read-only --allow ''"),
    ("PATCH", "credentials/K", {"expires": ""}, "credentials change K --expires ''"),
    ("POST", "credentials/K/rotate", {"grace": 3600}, "credentials rotate K --grace 3600s"),
    ("POST", "credentials/K/revoke", None, "credentials revoke K"),
    ("DELETE", "credentials/K", None, "credentials remove K"),
    (
        "POST", "tenants", {"name": "t", "description": "", "requests_per_second": 0, "bytes_per_second": 2000},
        "tenants create t && tenants limit t --requests 0 --bytes 2000",
    ),
    ("PATCH", "tenants/t", {"enabled": False}, "tenants disable t"),
    ("PATCH", "tenants/t", {"requests_per_second": 5}, "tenants limit t --requests 5"),
    ("DELETE", "tenants/t", None, "tenants remove t"),
    (
        "POST", "origins",
        {"name": "o", "endpoint": "https://s3", "access_key_id": "K", "secret_access_key": "S", "requester_pays": False},
        "origins create o --address https://s3 --access-key K --secret-file SECRET_FILE",
    ),
    ("PATCH", "origins/o", {"region": "eu"}, "origins change o --region eu"),
    ("DELETE", "origins/o", None, "origins remove o"),
    (
        "POST", "tokens", {"name": "ci", "role": "operator", "expires": "", "description": "nightly runs"},
        "tokens create ci --role operator --description 'nightly runs'",
    ),
    ("PATCH", "tokens/ci", {"expires": ""}, "tokens change ci --expires ''"),
    ("DELETE", "tokens/ci", None, "tokens revoke ci"),
)  # fmt: skip
"""A request below /-/admin, and the words of the command line."""


CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


def copied(page: Page) -> str:
    """The command that an open dialog shows, which is in the clipboard too."""
    page.get_by_role("dialog").get_by_role("button", name=COPY).click()
    expect(page.get_by_role("dialog")).to_contain_text("Copied.")
    shown = field(page, "Command").input_value()
    assert page.evaluate("() => navigator.clipboard.readText()") == shown
    return shown


def run(line: str, **environment: str) -> None:
    """Run a line in bash as an operator does, with his token in the environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    known = {"PATH": path, "LARDER_ADMIN_TOKEN": TOKEN, "LANG": "C.UTF-8", **environment}
    done = subprocess.run(["bash", "-c", line], env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def door(browser: Browser, running: Running) -> Iterator[Page]:
    """The dashboard before its token is given; its modules can be called."""
    watched = Watched(browser, running.console)
    watched.page.goto("/-/")
    yield watched.page
    watched.close()


def test_a_request_has_its_line(door: Page) -> None:
    """Rule: the line has the words of the command line for the same change, in a form that its grammar accepts."""
    requests = [
        {"method": method, "path": f"/-/admin/{path}", **({} if body is None else {"body": body})}
        for method, path, body, _ in LINES
    ]
    lines = door.evaluate(_LINES, [requests, AT])
    assert [line.replace(f" --endpoint {AT}", "").replace("larder-gateway ", "") for line in lines] == [
        words for *_, words in LINES
    ]
    for command in " && ".join(lines).split(" && "):
        words = shlex.split(command)[1:]
        parser(words[0]).parse_args(words)


@pytest.mark.parametrize(
    "text", ["plain/key", "a b", "it's", '$HOME `id` \\ "', "line\nbreak\t'", "\u202eright", "ключ 🙂", "~", "=x", ""]
)
def test_a_word_is_what_the_shell_passes_on(door: Page, text: str) -> None:
    """Rule: a shell that reads a quoted word passes on the same text, and runs nothing of it."""
    word = door.evaluate('async (text) => (await import("/-/static/dashboard/commands.js")).quoted(text)', text)
    echoed = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], env={"LANG": "C.UTF-8"}, capture_output=True, text=True, check=True
    )
    assert echoed.stdout == text


def test_a_copied_command_does_what_the_dialog_does(window: Any, running: Running) -> None:
    """Rule: the copied line, run in a shell with the token in its environment, makes the change of the dialog's values."""
    page = console(window, "tenants", **CLIPBOARD).page
    press(page, "Create")
    field(page, "Name").fill("by-command")
    field(page, "Description").fill("it's $HOME")
    field(page, "Bytes per second").fill("2GB")
    line = copied(page)
    assert TOKEN not in line
    run(line)
    made = admin(running, "GET", "tenants/by-command").json
    assert (made["description"], made["bytes_per_second"]) == ("it's $HOME", 2_000_000_000)


def test_a_change_without_a_command_is_a_request_of_curl(window: Any, running: Running) -> None:
    """Rule: what the command line has no command for is copied as curl, with the version that the page saw."""
    page = console(window, "rules", **CLIPBOARD).page
    press(page, "Add")
    field(page, "Match").fill("by/'curl'/**")
    line = copied(page)
    assert line.startswith("curl ")
    assert "If-Match: " in line
    run(line)
    assert admin(running, "GET", "rules").json["items"][0]["match"] == "by/'curl'/**"


def test_a_secret_is_a_variable_of_the_command(window: Any, running: Running) -> None:
    """Rule: a secret of a field is not in the command, which takes it from the environment."""
    page = console(window, "origins", **CLIPBOARD).page
    press(page, "Create")
    for label, value in (
        ("Name", "paid"),
        ("Endpoint", "http://127.0.0.1:9"),
        ("Access key", "AK"),
        ("Secret key", "top-secret"),
    ):
        field(page, label).fill(value)
    field(page, "Requester pays").check()
    line = copied(page)
    assert "top-secret" not in line
    run(line, SECRET_ACCESS_KEY="top-secret")
    assert admin(running, "GET", "origins/paid").json["requester_pays"]


def test_a_command_goes_with_the_values(window: Any) -> None:
    """Rule: a changed value takes the command of the old ones away; values that cannot be sent have none."""
    page = console(window, "warmups", **CLIPBOARD).page
    press(page, "Purge")
    field(page, "Prefix").fill("data/old/")
    assert copied(page).startswith("larder-gateway purge data/old/ --endpoint http://")
    field(page, "Prefix").fill("data/new/")
    expect(page.locator("#action-line")).to_be_empty()
    assert copied(page).startswith("larder-gateway purge data/new/ --endpoint http://")
