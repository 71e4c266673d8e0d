"""The objects of a simulated store, their listings, and the blocks that a client reads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from gateway.model.errors import ConfigError
from gateway.policies.streams.instructions import ListedPage, ListedSibling
from gateway.policies.streams.stream import Stream
from gateway.sim.streams.read_scenario import ORDERS_OF_READS, ClientSpec, PrefixSpec, StoredObject, traced
from gateway.sim.world.pooled import CachedBlock

PAGE_KEYS = 1000
"""The most names of a page."""


class SimulatedStore:
    """Objects by key.

    Args:
        prefixes: of generated objects.
        block: bytes above which objects are read in blocks.
    """

    def __init__(self, prefixes: Sequence[PrefixSpec], block: int) -> None:
        self.block = block
        self._below = {prefix.name: list(prefix.objects(block)) for prefix in prefixes}
        self.objects = {stored.key: stored for objects in self._below.values() for stored in objects}
        self._sorted: list[str] = []

    def reads_of(self, client: ClientSpec, rng: Generator) -> list[CachedBlock]:
        """A client's reads in order; the objects of a trace are added to the store.

        Raises:
            ConfigError: its trace cannot be read, or no object has the trace file's name.
        """
        if client.trace:
            reads = traced(client.trace, self.block)
            for key, _, size in reads:
                self.objects[key] = StoredObject(key, size, max(1, -(-size // self.block)))
            return [CachedBlock(key, block) for key, block, _ in reads]
        objects = [
            stored for stored in self._below[client.prefix] if not client.file or stored.key.endswith(f"/{client.file}")
        ]
        if not objects:
            raise ConfigError(f"clients: {client.name}: no object below {client.prefix}/ is named {client.file!r}")
        blocks = [CachedBlock(stored.key, block) for stored in objects for block in range(stored.blocks)]
        count = client.reads or max(1, round(len(blocks) * client.epochs))
        order = ORDERS_OF_READS[client.order]
        return [blocks[at] for at in order(rng, len(blocks), count).tolist()]

    def size_of(self, item: CachedBlock) -> int:
        """Bytes of a block."""
        stored = self.objects[item.path]
        return stored.size if stored.grouped > 1 else min(self.block, stored.size - item.block * self.block)

    def keys(self) -> list[str]:
        """All keys, in listing order."""
        if len(self._sorted) != len(self.objects):
            self._sorted = sorted(self.objects)
        return self._sorted

    def below(self, stream: Stream) -> list[str]:
        """The keys of a stream, in listing order."""
        if stream.blocks:
            return [stream.prefix]
        keys = self.keys()
        return keys[bisect_left(keys, stream.prefix) : bisect_left(keys, f"{stream.prefix}\U0010ffff")]

    def page(self, prefix: str, after: str, *, deep: bool) -> ListedPage:
        """A page of names below a prefix: of all objects (``deep``), or of children."""
        keys, siblings = self.keys(), list[ListedSibling]()
        at = bisect_right(keys, f"{prefix}{after}")
        while at < len(keys) and keys[at].startswith(prefix):
            if len(siblings) == PAGE_KEYS:
                return ListedPage(siblings, True)
            name = keys[at][len(prefix) :]
            folder, slash, _ = name.partition("/")
            if deep or not slash:
                siblings.append(ListedSibling(name, True, self.objects[keys[at]].size))
                at += 1
            else:
                siblings.append(ListedSibling(f"{folder}/", False, 0))
                at = bisect_left(keys, f"{prefix}{folder}0", at)  # "0" sorts after "/"
        return ListedPage(siblings, False)

    def total(self) -> int:
        """Bytes of all objects."""
        return int(np.sum([stored.size for stored in self.objects.values()]))
