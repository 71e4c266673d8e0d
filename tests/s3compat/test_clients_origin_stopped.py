"""Real clients, the origin unreachable."""

import pytest
from botocore.exceptions import ClientError

from rig.processes import wait_until
from tests.s3compat import trials
from tests.s3compat.pairs import COLD, QUICK


@pytest.mark.parametrize(("kind", "operation"), QUICK)
def test_a_client_reads_on_and_is_told_what_fails(place_to_try, clients, kind, operation):
    """Without its origin the gateway answers reads from the cache, and everything else with 503 ServiceUnavailable."""
    trials.with_the_origin_stopped(clients[kind], operation, place_to_try)


@pytest.mark.parametrize(("kind", "operation"), COLD)
def test_a_client_is_told_that_an_object_is_not_cached(place_to_try, clients, kind, operation):
    """Without its origin the gateway answers a read of an uncached object with 503, and the client raises."""
    trials.cold_with_the_origin_stopped(clients[kind], operation, place_to_try)


def test_a_refusal_does_not_tell_where_the_origin_is(place_to_try):
    """Clients learn that the origin is unreachable; its address and the failure are in the gateway's log."""
    address = place_to_try.road.endpoint.partition("://")[2]
    place_to_try.road.close()
    try:
        with pytest.raises(ClientError) as refused:
            place_to_try.client.get_object(Bucket=place_to_try.bucket, Key="nobody-asked-before")
    finally:
        place_to_try.road.open()
    error = refused.value.response["Error"]
    assert (error["Code"], address in error["Message"]) == ("ServiceUnavailable", False)
    log = place_to_try.running.log
    wait_until(lambda: address in log.read_text(), 20, "the address in the log")
