"""Reads of the first object of the tests' store, by any access key."""

from __future__ import annotations

from botocore.exceptions import ClientError

from rig.gateways import Running, cache_status
from rig.processes import wait_until
from rig.v1 import GWA

ADMIN, READER = "the-admin-token-of-the-tests", "a-token-that-may-only-look"
SOON = 30.0


def served(running: Running, key: str, secret: str) -> str:
    """Read with an access key; return the cache status, or the error code."""
    try:
        return cache_status(running.client(key, secret).get_object(Bucket="photos", Key="train/00.jpg"))
    except ClientError as refused:
        return str(refused.response["Error"]["Code"])


def cached(running: Running) -> None:
    """Read the first object until it is a hit; a missed object is cached a moment after its answer."""
    wait_until(lambda: served(running, *GWA).startswith("HIT"), SOON, "a hit")
