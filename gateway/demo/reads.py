"""Reading objects as a training job does, and checking every byte that comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.demo.clients import ORIGIN_KEYS, THREADS, origin_requests, s3_client
from gateway.demo.data import BUCKET
from gateway.demo.processes import DemoFailed
from gateway.demo.table import Pass, console
from gateway.demo.world import World

Item = TypeVar("Item")


def each(what: str, items: Iterable[Item], work: Callable[[Item], Any]) -> list[Any]:
    """Call ``work`` for every item in THREADS threads under a progress bar; returns its results, in any order.

    The first failure, or Ctrl-C, drops calls that have not begun.
    """
    items = list(items)
    if not console.is_terminal:
        console.print(f"  {what}", soft_wrap=True)
    columns = (TextColumn(f"  {what:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    pool = ThreadPoolExecutor(THREADS)
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(what, total=len(items))
            results = []
            for future in as_completed([pool.submit(work, item) for item in items]):
                results.append(future.result())
                progress.advance(task)
            return results
    finally:
        pool.shutdown(cancel_futures=True)


def store(what: str, origin: str, objects: Mapping[str, bytes]) -> None:
    """Put the data into the origin, bypassing the gateways: the buckets that a team already has."""
    client = s3_client(origin, ORIGIN_KEYS)
    client.create_bucket(Bucket=BUCKET)
    each(what, objects.items(), lambda item: client.put_object(Bucket=BUCKET, Key=item[0], Body=item[1]))


def read(client: Any, key: str, expected: bytes) -> str:
    """Read one object and compare it; returns the cache status reported by the gateway.

    Raises:
        DemoFailed: the bytes differ from the stored ones.
    """
    answer = client.get_object(Bucket=BUCKET, Key=key)
    body = answer["Body"].read()
    if body != expected:
        raise DemoFailed(f"{key}: {len(body)} bytes came back that are not the {len(expected)} bytes that were stored")
    header: str = answer["ResponseMetadata"]["HTTPHeaders"].get("x-larder-cache", "")
    return header


def read_all(name: str, world: World, client: Any, objects: Mapping[str, bytes]) -> Pass:
    """Read every object once, concurrently; returns the counts.

    Raises:
        DemoFailed: a body differed.
    """
    before = origin_requests(world.origin)
    begun = time.perf_counter()
    outcomes = each(name, objects.items(), lambda item: read(client, *item))
    seconds = time.perf_counter() - begun
    return Pass(
        name=name,
        objects=len(objects),
        size=sum(map(len, objects.values())),
        seconds=seconds,
        origin_requests=origin_requests(world.origin) - before,
        hits=sum(outcome.startswith("HIT") for outcome in outcomes),
    )
