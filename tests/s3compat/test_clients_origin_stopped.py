"""Real clients, the origin unreachable."""

import pytest

from tests.s3compat import trials
from tests.s3compat.conftest import COLD, QUICK


@pytest.mark.parametrize(("kind", "operation"), QUICK)
def test_a_client_reads_on_and_is_told_what_fails(place_to_try, clients, kind, operation):
    """Without its origin the gateway answers reads from the cache, and everything else with 503 ServiceUnavailable."""
    trials.with_the_origin_stopped(clients[kind], operation, place_to_try)


@pytest.mark.parametrize(("kind", "operation"), COLD)
def test_a_client_is_told_that_an_object_is_not_cached(place_to_try, clients, kind, operation):
    """Without its origin the gateway answers a read of what it does not have with 503, and the client raises."""
    trials.cold_with_the_origin_stopped(clients[kind], operation, place_to_try)
