"""One gateway for the attacks of a module."""

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz.world import World, world


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A gateway under attack; its invariants are checked once more at the end."""
    # The fake origin logs warnings about its input, too.
    logging.getLogger("aiohttp.server").disabled = True
    with world(tmp_path_factory.mktemp("attacked")) as attacked:
        yield attacked
        attacked.inspect()
    logging.getLogger("aiohttp.server").disabled = False
