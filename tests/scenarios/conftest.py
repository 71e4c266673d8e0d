"""The origin of the stories."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.world import Origin


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """An origin for the stories of one module; each story has keys of its own."""
    with Origin() as origin:
        yield origin
