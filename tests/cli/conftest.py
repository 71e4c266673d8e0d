"""An operator's view: a gateway to ask, and the variables that name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cli.commands import Ran, run_here
from tests.cli.fake_admin import OVERVIEW, TOKEN, FakeAdmin, serving


@pytest.fixture
def admin() -> Iterator[FakeAdmin]:
    """Admin endpoints with prepared answers."""
    with serving(FakeAdmin()) as server:
        server.answers["GET overview"] = OVERVIEW
        yield server


@pytest.fixture
def variables(admin) -> dict[str, str]:
    """An operator's environment variables."""
    return {"LARDER_ENDPOINT": admin.endpoint, "LARDER_ADMIN_TOKEN": TOKEN}


@pytest.fixture
def operator(variables) -> Callable[..., Ran]:
    """Runs ``larder-gateway`` there."""
    return lambda *words, **options: run_here(*words, **{**variables, **options})
