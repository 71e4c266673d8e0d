"""Real clients, everything in the cache."""

import pytest

from rig.processes import wait_until
from tests.s3compat import trials
from tests.s3compat.clients.base import boto3_client
from tests.s3compat.pairs import CAN


@pytest.mark.parametrize(("kind", "operation"), CAN)
def test_a_client_works_on_a_hit(place_to_try, clients, kind, operation):
    """A client's reads come from the cache, and its writes are seen by the next read."""
    trials.on_a_hit(clients[kind], operation, place_to_try)


def test_every_hit_is_logged_with_its_key(place_to_try):
    """The access log names the object of a repeated hit like that of the first one."""
    place_to_try.seed({"hot/key": b"bytes"})
    place_to_try.warm({"hot/key": b"bytes"})
    mark = place_to_try.mark()
    plain = boto3_client(place_to_try.access, response_checksum_validation="when_required")
    for _again in range(3):
        plain.get_object(Bucket=place_to_try.bucket, Key="hot/key")["Body"].read()
    plain.close()
    wait_until(lambda: len(place_to_try.since(mark)) >= 3, 60, "three lines")
    # The line of the last read before the mark may come after it; it says the same.
    assert {(line.key, line.cache) for line in place_to_try.since(mark)} == {("hot/key", "HIT")}
