"""Reads of the first object of the tests' store, by any access key."""

from __future__ import annotations

from botocore.exceptions import ClientError

from tests.gateways import Running, cache_status
from tests.origins.processes import wait_until
from tests.v1 import GWA

ADMIN, READER = "the-admin-token-of-the-tests", "a-token-that-may-only-look"
SOON = 30.0


def served(running: Running, key: str, secret: str) -> str:
    """What a read with an access key comes to: the cache's word, or the code of the refusal."""
    try:
        return cache_status(running.client(key, secret).get_object(Bucket="photos", Key="train/00.jpg"))
    except ClientError as refused:
        return str(refused.response["Error"]["Code"])


def cached(running: Running) -> None:
    """Have the first object in the cache; what a miss has fetched is there a moment after its answer."""
    wait_until(lambda: served(running, *GWA).startswith("HIT"), SOON, "a hit")
