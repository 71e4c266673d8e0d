"""Samples whose members are separate objects, such as ``0001.jpg`` and ``0001.cls``.

Each member is an item of the gateway with its own digest, rights and place in the cache: equal labels are stored once. A sample
has ``members`` adjacent items, as many as the dataset states, and needs no table: sample ``s`` begins with item ``members * s``.
The planner orders samples, and the reader here requests their items.

The gateway chooses among interchangeable candidates by their first members, so the largest member is named first when the digest
file is built. The other members are requested only for the chosen samples. A sample is delivered as a stretch of a TAR with its
members, like those that ``--tar-samples`` finds at the origin: `Item.members` reads both. The price is one copy of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.base.tar import pack_sample
from larder.reading.batch import BatchReader
from larder.reading.frames import HIT, JOINED
from larder.reading.merging import Fetched


class _Members(NamedTuple):
    """The received members, by item."""

    data: dict[int, memoryview]
    flags: dict[int, int]


class SampleReader:
    """Reads samples by number, as ``larder.reading.source.ItemReader``.

    Args:
        reader: of the items.
        names: gives the members' names, in the order of the items; called when the first sample is read.
    """

    def __init__(self, reader: BatchReader, names: Callable[[], tuple[str, ...]]) -> None:
        self._reader = reader
        self._find_names = names
        self._count = reader.dataset.members

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The members' names in a sample, such as ``("jpg", "cls")``."""
        return self._find_names()

    def fetch(
        self,
        indices: NDArray[np.uint32],
        *,
        mode: str = "exact",
        take: int | None = None,
        ordered: bool = False,
        epoch: int = 0,
        job: str = "",
        order: str = "",
    ) -> Fetched:
        """As `BatchReader.fetch`, for samples, in the order of the request if ``ordered`` or ``"exact"``. A sample with an
        unavailable member has failed."""
        samples = np.asarray(indices, np.uint32)
        if mode == "exact":
            items = self._reader.fetch(self._items(samples), epoch=epoch, job=job, order=order)
            return self._whole(samples, items)
        first = self._reader.fetch(samples * np.uint32(self._count), mode=mode, take=take, epoch=epoch, job=job)
        return self._completed(first, epoch, job)

    def fetch_shared(self, indices: NDArray[np.uint32], *, take: int, offers: int, epoch: int, job: str) -> Fetched:
        """As `BatchReader.fetch_shared`, for samples."""
        firsts = np.asarray(indices, np.uint32) * np.uint32(self._count)
        first = self._reader.fetch_shared(firsts, take=take, offers=offers, epoch=epoch, job=job)
        return self._completed(first, epoch, job)

    def offers(self, most: int, *, epoch: int, job: str) -> NDArray[np.uint32]:
        """As `BatchReader.offers`: the samples whose first member is offered."""
        items = self._reader.offers(most * self._count, epoch=epoch, job=job)
        return np.asarray(items[items % self._count == 0] // np.uint32(self._count), np.uint32)

    def _completed(self, first: Fetched, epoch: int, job: str) -> Fetched:
        """The samples of these first members, with their other members."""
        chosen = first.indices // np.uint32(self._count)
        others = self._reader.fetch(self._items(chosen, 1), epoch=epoch, job=job)
        both = replace(
            first,
            indices=np.concatenate([first.indices, others.indices]),
            data=first.data + others.data,
            flags=np.concatenate([first.flags, others.flags]),
            failed={**first.failed, **others.failed},
        )
        return self._whole(chosen, both)

    def prefetch(self, indices: NDArray[np.uint32], *, epoch: int | None = None) -> dict[str, int]:
        """As `BatchReader.prefetch`; counts samples, and incomplete ones as whole."""
        counts = self._reader.prefetch(self._items(np.asarray(indices, np.uint32)), epoch=epoch)
        return {name: -(-count // self._count) for name, count in counts.items()}

    def close(self) -> None:
        """Close idle connections; it stays usable."""
        self._reader.close()

    def _items(self, samples: NDArray[np.uint32], start: int = 0) -> NDArray[np.uint32]:
        """The items of samples, from member ``start`` on."""
        members = np.arange(start, self._count, dtype=np.uint32)
        return (samples[:, None] * np.uint32(self._count) + members).reshape(-1)

    def _whole(self, samples: NDArray[np.uint32], fetched: Fetched) -> Fetched:
        """The samples with all members received."""
        came = _Members(
            dict(zip(fetched.indices.tolist(), fetched.data, strict=True)),
            dict(zip(fetched.indices.tolist(), fetched.flags.tolist(), strict=True)),
        )
        failed = {
            item // self._count: replace(failure, index=item // self._count) for item, failure in fetched.failed.items()
        }
        complete = [sample for sample in samples.tolist() if sample not in failed and self._complete(sample, came)]
        return Fetched(
            np.array(complete, np.uint32),
            [self._packed(sample, came) for sample in complete],
            np.array([self._flags(sample, came) for sample in complete], np.uint16),
            failed,
            fetched.directives,
        )

    def _places(self, sample: int) -> range:
        return range(self._count * sample, self._count * (sample + 1))

    def _complete(self, sample: int, came: _Members) -> bool:
        return all(item in came.data for item in self._places(sample))

    def _packed(self, sample: int, came: _Members) -> memoryview:
        return pack_sample({name: came.data[item] for name, item in zip(self.names, self._places(sample), strict=True)})

    def _flags(self, sample: int, came: _Members) -> int:
        """The flags of samples. A sample is a hit if all of its members are, and joined another read if none was read for it."""
        flags = [came.flags[item] for item in self._places(sample)]
        if all(flag & HIT for flag in flags):
            return HIT
        return JOINED if all(flag & (HIT | JOINED) for flag in flags) else 0
