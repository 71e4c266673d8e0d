"""The golden vectors of the batch answer: one truth for the gateway and for the client, which is tested without the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / "clients" / "python" / "tests" / "wire"


def test_both_sides_have_the_same_vectors() -> None:
    """A vector that is added on one side is added on the other."""
    assert {path.name for path in HERE.glob("*.json")} == {path.name for path in CLIENTS.glob("*.json")}


@pytest.mark.parametrize("path", sorted(HERE.glob("*.json")), ids=lambda path: path.stem)
def test_both_copies_are_equal(path: Path) -> None:
    """Both copies of a golden vector are equal, byte for byte."""
    assert (CLIENTS / path.name).read_bytes() == path.read_bytes()
