"""Input of the house tests: the sources as syntax trees, the project's files as text."""

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.collecting import permanent

ROOT = Path(__file__).resolve().parents[2]


def _sources(*folders: str) -> dict[str, ast.Module]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    with permanent():
        return {path.relative_to(ROOT).as_posix(): _tree(path) for path in paths}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shipped() -> dict[str, ast.Module]:
    """Every module that users run, by path."""
    return _sources("gateway", "clients/python/src")


@pytest.fixture(scope="session")
def everything() -> dict[str, ast.Module]:
    """Every module of the repository, by path."""
    return _sources(
        "gateway",
        "clients/python/src",
        "clients/python/tests",
        "tests",
        "rig",
        "lab",
        "scripts",
        "examples",
    )


@pytest.fixture(scope="session")
def texts() -> dict[str, str]:
    """Every text file that git tracks, or that is new and not ignored, by path."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    found = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            found[name] = content.decode("utf-8")
    return found
