"""Real clients, nothing in the cache."""

import pytest

from tests.s3compat import trials
from tests.s3compat.pairs import CAN


@pytest.mark.parametrize(("kind", "operation"), CAN)
def test_a_client_works_on_a_miss(place_to_try, clients, kind, operation):
    """A client's operations arrive at the origin, and its reads come from there."""
    trials.on_a_miss(clients[kind], operation, place_to_try)
