"""`BatchReader` and `get_many` for asyncio programs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from larder.base.errors import S3Error
from larder.base.later import Unpack
from larder.reading.batch import BatchReader, Indices
from larder.reading.many import Many, ManyOptions, get_many
from larder.reading.merging import Fetched


class AsyncBatchReader:
    """A ``BatchReader`` with awaitable calls; each runs in a thread of the event loop's default executor.

    A cancelled call ends at once for its caller. Its request completes in the thread, on a separate connection, so no other
    request receives its answer.

    Args:
        reader: sends the requests; can be used directly at the same time.
    """

    def __init__(self, reader: BatchReader) -> None:
        self.reader = reader

    def __repr__(self) -> str:
        return f"AsyncBatchReader({self.reader!r})"

    async def fetch(
        self,
        indices: Indices,
        *,
        mode: str = "exact",
        take: int | None = None,
        ordered: bool = False,
        epoch: int = 0,
        job: str = "",
    ) -> Fetched:
        """As ``BatchReader.fetch``."""
        call = partial(self.reader.fetch, mode=mode, take=take, ordered=ordered, epoch=epoch, job=job)
        return await asyncio.to_thread(call, indices)

    async def prefetch(self, indices: Indices, *, epoch: int | None = None) -> dict[str, int]:
        """As ``BatchReader.prefetch``."""
        return await asyncio.to_thread(partial(self.reader.prefetch, epoch=epoch), indices)

    async def lookup(self, indices: Indices) -> NDArray[np.bool_]:
        """As ``BatchReader.lookup``."""
        return await asyncio.to_thread(self.reader.lookup, indices)


@overload
async def get_many_async(
    entries: Many,
    *,
    endpoint: str | None = None,
    return_exceptions: Literal[False] = False,
    **options: Unpack[ManyOptions],
) -> list[bytes]: ...


@overload
async def get_many_async(
    entries: Many, *, endpoint: str | None = None, return_exceptions: bool, **options: Unpack[ManyOptions]
) -> list[bytes | S3Error]: ...


async def get_many_async(
    entries: Many, *, endpoint: str | None = None, return_exceptions: bool = False, **options: Unpack[ManyOptions]
) -> list[bytes] | list[bytes | S3Error]:
    """`get_many` in a thread of the event loop's default executor; a cancelled call completes there."""
    call = partial(get_many, endpoint=endpoint, return_exceptions=return_exceptions, **options)
    return await asyncio.to_thread(call, entries)
