"""docs/features.md: every row says what Larder does, how far, and names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs/features.md"
VERDICT = re.compile(r"\*\*(\w+)\*\*: ")
TEST = re.compile(r"`((?:tests|clients/python/tests)/[\w/]+\.py)::([\w:]+)`")


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables of a page, without their heads."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if re.fullmatch(r"[|-]+", line):
            found.pop()
        elif line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names of a module's tests, methods as ``Class::method``; read, not run."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        functions = [each for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        found |= {prefix + each.name for each in functions if each.name.startswith("test_")}
    return frozenset(found)


def exists(module: str, name: str) -> bool:
    """True if a file has this test."""
    path = ROOT / module
    return path.is_file() and name in names_in(path)


def sound(cells: list[str]) -> bool:
    """True if a row has three cells: feature, Larder's behaviour after a mark where it falls short, and tests only."""
    if len(cells) != 3 or "" in cells:
        return False
    mark = VERDICT.match(cells[1])
    return (mark is None or mark[1] in ("partly", "no")) and not TEST.sub("", cells[2]).strip(", ")


def test_every_row_has_a_verdict_and_a_test():
    """Rule: feature, what Larder does, and at least one test; a row that is "partly" or "no" says so and is explained."""
    every = rows(PAGE.read_text(encoding="utf-8"))
    assert len(every) > 100
    assert [" | ".join(cells) for cells in every if not sound(cells)] == []


@pytest.mark.parametrize(
    "cells", [["a", "**maybe**: b", "`tests/a.py::test_b`"], ["a", "b", ""], ["a", "", "`tests/a.py::test_b`"]]
)
def test_a_row_without_its_parts_is_noticed(cells: list[str]):
    """Rule: an invalid verdict, a missing test and a missing explanation are each found."""
    assert sound(["a", "**no**: b", "`tests/a.py::test_b`"])
    assert not sound(cells)


def test_every_named_test_exists():
    """Rule: every test named on the page exists."""
    named = set(TEST.findall(PAGE.read_text(encoding="utf-8")))
    assert len(named) > 80
    assert [f"{module}::{name}" for module, name in sorted(named) if not exists(module, name)] == []


def test_no_feature_has_two_rows():
    """Rule: a feature stands once, so that it has one verdict."""
    features = [cells[0] for cells in rows(PAGE.read_text(encoding="utf-8"))]
    assert sorted({each for each in features if features.count(each) > 1}) == []


@pytest.mark.parametrize("name", ["test_that_is_missing", "rows", "TestNothing::test_here"])
def test_a_test_that_does_not_exist_is_noticed(name: str):
    """Rule: neither a name that is nowhere, nor a helper, counts as a test."""
    own = Path(__file__).relative_to(ROOT).as_posix()
    assert exists(own, "test_every_named_test_exists")
    assert not exists(own, name)
