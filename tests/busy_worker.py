"""A worker process that fills, reads, forgets and evicts: arguments are directory, seed, capacity and rounds (0: endless).

Prints a line for every ten rounds. Every object's bytes follow from its key, so that any reader can check them.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import warnings
from collections.abc import Coroutine

from gateway.base.config import CacheSettings
from gateway.model.errors import BlobGone, DiskUnavailable
from gateway.store.store import Store
from tests.stores import BLOCK, get, key_of, meta_of

NAMES = 60


def content_of(name: str) -> bytes:
    """The bytes of an object; every third object equals its neighbour, and some have several blocks."""
    number = int(name)
    chosen = random.Random(number - number % 3 % 2)
    return chosen.randbytes(chosen.choice([0, 10, 3000, BLOCK, 3 * BLOCK + 5]))


async def fill(store: Store, name: str) -> None:
    """Store an object as a fill would, unless there is no room."""
    key, content = key_of(name), content_of(name)
    generation = store.generations.of(key)
    refs = {}
    try:
        for number, at in enumerate(range(0, max(1, len(content)), BLOCK)):
            piece = content[at : at + BLOCK]
            await store.make_room(len(piece))
            blob = store.begin(len(piece))
            try:
                await blob.write(piece[:1000])
                await asyncio.sleep(0)
                await blob.write(piece[1000:])
                refs[number] = await blob.commit()
            finally:
                blob.end()
    except DiskUnavailable:
        pass
    if refs:
        await store.record(key, meta_of(content), BLOCK, refs, generation=generation, confirmed_at=time.time())


async def check(store: Store, name: str) -> None:
    """Require that served bytes are right."""
    try:
        found = await get(store, name)
    except (BlobGone, FileNotFoundError):
        return
    if found is not None and found != content_of(name):
        sys.exit(f"{name}: wrong bytes")


async def live(root: str, seed: int, capacity: int, rounds: int) -> None:
    """Perform random operations."""
    store = await Store.open(CacheSettings(dir=root, capacity=capacity, reserve=0), now=time.time)
    chosen = random.Random(seed)
    done = 0
    while not rounds or done < rounds:
        names = [str(chosen.randrange(NAMES)) for _ in range(4)]
        actions: list[Coroutine[None, None, None]] = [
            chosen.choices([fill, check], [3, 2])[0](store, name) for name in names
        ]
        if chosen.random() < 0.2:
            actions.append(store.forget([key_of(names[0])]))
        if chosen.random() < 0.2 and await store.try_lock():
            actions.append(store.sweep())
        await asyncio.gather(*actions)
        done += 1
        if done % 10 == 0:
            sys.stdout.write(f"{done}\n")
            sys.stdout.flush()
    await store.close()


if __name__ == "__main__":
    warnings.simplefilter("error")
    asyncio.run(live(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
