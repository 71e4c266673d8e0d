"""The demo's claims, one function each, which checks its claim by reads and counts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from gateway.demo.clients import ORIGIN_KEYS, SPEECH, origin_requests, s3_client
from gateway.demo.data import BUCKET, LARGE_KEY, unique_size
from gateway.demo.processes import DemoFailed
from gateway.demo.reads import read, read_all
from gateway.demo.table import Pass, console
from gateway.demo.world import World
from gateway.model.units import format_size

SETTLE_SECONDS = 300.0
COPY_KEY = "large/weights-copy.bin"
SPEECH_KEY = "speech/hello.txt"


def cold_and_warm(world: World, client: Any, small: Mapping[str, bytes], large: Mapping[str, bytes]) -> list[Pass]:
    """Read everything twice through the gateway; the second time nothing may reach the origin."""
    rows = [
        read_all("images, cold", world, client, small),
        read_all("64 MiB, cold", world, client, large),
    ]
    _until_cached(world, unique_size({**small, **large}))
    rows.insert(1, read_all("images, warm", world, client, small))
    rows.append(read_all("64 MiB, warm", world, client, large))
    for row in (rows[1], rows[3]):
        if row.origin_requests or row.hits != row.objects:
            raise DemoFailed(
                f"{row.name}: {row.origin_requests} origin requests, {row.hits} of {row.objects} were hits"
            )
    return rows


def saved(rows: list[Pass]) -> str:
    """The number of origin requests saved by the cache, according to the counts above."""
    reads = sum(row.objects for row in rows)
    origin = sum(row.origin_requests for row in rows)
    return f"{reads:,} reads cost {origin:,} requests, counted at the origin: {reads - origin:,} saved."


def stored_once(world: World, client: Any, large: Mapping[str, bytes]) -> str:
    """Copy the large object to a second key and read it: equal bytes take no additional space."""
    before = world.cached_bytes()
    client.copy_object(Bucket=BUCKET, Key=COPY_KEY, CopySource={"Bucket": BUCKET, "Key": LARGE_KEY})
    read(client, COPY_KEY, large[LARGE_KEY])
    deadline = time.monotonic() + SETTLE_SECONDS
    while not read(client, COPY_KEY, large[LARGE_KEY]).startswith("HIT"):
        if time.monotonic() > deadline:
            raise DemoFailed(f"{COPY_KEY} is still not served from the cache after {SETTLE_SECONDS:.0f} s")
    grown = world.cached_bytes() - before
    if grown:
        raise DemoFailed(f"a copy of bytes that are cached made the cache grow by {grown} bytes")
    size = format_size(len(large[LARGE_KEY]))
    return f"{size} copied to a second key and read through it: the cache grew by {grown} bytes."


def written(world: World, client: Any, small: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """Overwrite a cached object through the gateway and check that a read returns the new bytes. Also returns the current
    objects."""
    key, old = next(iter(small.items()))
    new = old + b"changed"
    if not read(client, key, old).startswith("HIT"):
        raise DemoFailed(f"{key} should have been in the cache before it was overwritten")
    client.put_object(Bucket=BUCKET, Key=key, Body=new)
    read(client, key, new)
    read(s3_client(world.origin, ORIGIN_KEYS), key, new)
    sentence = f"{key} overwritten while it was cached: the next read gave the new bytes, as did the origin."
    return sentence, {**small, key: new}


def refused(world: World, small: Mapping[str, bytes]) -> str:
    """Check that a tenant is refused an object outside its allow-list, although the object is cached."""
    speech = s3_client(world.endpoint, SPEECH)
    speech.put_object(Bucket=BUCKET, Key=SPEECH_KEY, Body=b"hello")
    read(speech, SPEECH_KEY, b"hello")
    before = origin_requests(world.origin)
    key = list(small)[-1]
    try:
        speech.get_object(Bucket=BUCKET, Key=key)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == "AccessDenied" and origin_requests(world.origin) == before:
            return f"tenant speech reads {SPEECH_KEY}, and gets {code} for {key}, which tenant vision has cached."
        raise DemoFailed(f"tenant speech should have been refused {key} by the gateway, but got {code}") from error
    raise DemoFailed(f"tenant speech may read {key}, which its allow-list does not cover")


def _until_cached(world: World, size: int) -> None:
    """Wait for the last blobs, which are renamed into place after their last byte has been sent."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (cached := world.cached_bytes()) != size:
        if time.monotonic() > deadline:
            raise DemoFailed(f"the cache holds {cached} bytes, but equal objects stored once are {size} bytes")
        time.sleep(0.02)
    console.print(f"  in the cache: {format_size(size)}, equal objects stored once")
