"""The origin of the stories."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.world import Origin


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """An origin for all scenarios of a module; each uses its own keys."""
    with Origin() as origin:
        yield origin
