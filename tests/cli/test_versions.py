"""One version: of both programs, their distributions, the chart, and the newest sections of the changelogs."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import gateway
import larder
from gateway.cli import main
from larder.cli import main as users_main

ROOT = Path(__file__).resolve().parents[2]
CHART = "deploy/helm/larder/Chart.yaml"
SOURCES = ("gateway/__init__.py", "clients/python/src/larder/__init__.py")
CHANGELOGS = ("CHANGELOG.md", "clients/python/CHANGELOG.md")
RELEASE = re.compile(r"^## ([0-9]+\.[0-9]+\.[0-9]+) - ([0-9]{4}-[0-9]{2}-[0-9]{2})$", re.MULTILINE)


def versions(root: Path) -> set[str]:
    """Every version in a tree: of the sources, the chart, and the newest release of each changelog."""
    chart = yaml.safe_load((root / CHART).read_text())
    of_sources = [re.findall(r'^__version__ = "(.+)"$', (root / path).read_text(), re.MULTILINE) for path in SOURCES]
    newest = [RELEASE.findall((root / path).read_text())[0][0] for path in CHANGELOGS]
    return {chart["version"], chart["appVersion"], *newest, *(version for [version] in of_sources)}


@pytest.mark.parametrize(
    ("program", "module", "name"), [(main, gateway, "larder-gateway"), (users_main, larder, "larder")]
)
def test_a_program_says_the_version_of_its_wheel(program, module, name, capsys) -> None:
    """Rule: ``--version`` is the version that the wheel is built with."""
    with pytest.raises(SystemExit) as ended:
        program(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{name} {module.__version__}\n"
    assert version(name) == module.__version__


def test_gateway_client_and_chart_are_released_together() -> None:
    """Rule: they have the same version, which is that of the changelogs' newest release."""
    assert versions(ROOT) == {gateway.__version__} == {larder.__version__}


@pytest.mark.parametrize("path", CHANGELOGS)
def test_a_changelog_has_its_releases_in_order(path: str) -> None:
    """Rule: every section is a release with its date, the newest first, below at most one of what is not released."""
    text = (ROOT / path).read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    releases = [f"{version} - {date}" for version, date in RELEASE.findall(text)]
    assert headings in (releases, ["Unreleased", *releases])
    dates = [date for _, date in RELEASE.findall(text)]
    assert dates == sorted(dates, reverse=True)
    assert len(dates) >= 2


def test_a_version_is_given_in_one_place(tmp_path: Path) -> None:
    """Rule: scripts/set-version writes it everywhere, and a word that is none nowhere."""
    for path in ("scripts/set-version", CHART, *SOURCES, *CHANGELOGS):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    for path in CHANGELOGS:
        (tmp_path / path).write_text("# Changelog\n\n## Unreleased\n\n- A line.\n\n## 0.0.1 - 2020-01-01\n")
    script = str(tmp_path / "scripts/set-version")
    assert subprocess.run([script, "newest"], capture_output=True, check=False).returncode == 2
    subprocess.run([script, "1.20.3"], check=True)
    assert versions(tmp_path) == {"1.20.3"}
