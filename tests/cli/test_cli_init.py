"""``larder-gateway init``: a configuration that ``serve`` takes as it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gateway.base.config import load_settings
from tests.cli.commands import run_here

STORE = "https://s3.eu-west-1.amazonaws.com"


def test_what_is_written_is_a_configuration(tmp_path: Path) -> None:
    """Rule: origin, region, cache and capacity are those that were named; key and token are new; others cannot read it."""
    file = tmp_path / "larder.toml"
    cache = tmp_path / 'a "quoted" folder'
    assert run_here("init", str(file), "--origin", STORE, "--cache-dir", str(cache), "--capacity", "500GB").status == 0
    settings = load_settings(file, {})
    assert (settings.origins[0].endpoint, settings.origins[0].region) == (STORE, "eu-west-1")
    assert (settings.cache.dir, settings.cache.capacity) == (str(cache), 500 * 1000**3)
    assert len({settings.credentials[0].secret_access_key, settings.admin.token, ""}) == 3
    assert os.stat(file).st_mode & 0o777 == 0o600


def test_every_commented_setting_is_one(tmp_path: Path) -> None:
    """Rule: with its comments taken away, the file is a configuration too."""
    file = tmp_path / "larder.toml"
    assert run_here("init", str(file), "--origin", STORE).status == 0
    settings = re.compile(r"^# (\[+\w+\]+|\w+ = .*)$", re.MULTILINE)
    text, uncommented = settings.subn(r"\1", file.read_text())
    file.write_text(text)
    assert uncommented >= 9
    assert [rule.match for rule in load_settings(file, {}).rules] == ["datasets/**"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--origin", "nonsense"), "--origin: nonsense must look like"),
        ((), "no origin: name the object store with --origin"),
        (("nowhere/larder.toml", "--origin", STORE), "FILE: nowhere/larder.toml cannot be written: No such file"),
    ],
)
def test_a_refusal_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    """Rule: a wrong origin or place is wrong usage, named by its option."""
    monkeypatch.chdir(tmp_path)
    nothing = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    ran = run_here("init", *words, **nothing)
    assert ran.status == 2
    assert said in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    """Rule: init overwrites nothing."""
    file = tmp_path / "larder.toml"
    file.write_text("mine")
    ran = run_here("init", str(file), "--origin", STORE)
    assert (ran.status, file.read_text()) == (2, "mine")
    assert "exists" in ran.err
