"""The asyncio twin of the batch call."""

import asyncio
import threading

import pytest
from fake_gateway import ID, FakeBatchGateway, Store, hang, serving

import larder

ITEMS = {index: bytes([index]) * (index % 7) for index in range(40)}
DATASET = larder.DatasetInfo("digits", ID, len(ITEMS), caching="full")


@pytest.fixture
def gateway():
    """A gateway that has all items."""
    with serving(FakeBatchGateway(Store(dict(ITEMS)))) as server:
        yield server


@pytest.fixture
def reader(gateway):
    """A reader for asyncio."""
    retry = larder.Retry(attempts=3, base=0)
    credentials = larder.Credentials("key", "secret")
    return larder.AsyncBatchReader(larder.BatchReader(gateway.endpoint, DATASET, credentials=credentials, retry=retry))


def _content(fetched):
    return [(int(index), bytes(data)) for index, data in zip(fetched.indices, fetched.data, strict=True)]


def test_batches_at_the_same_time(reader):
    """Awaited together, each call gets its own items."""

    async def main():
        return await asyncio.gather(*(reader.fetch([at, at + 1], ordered=True) for at in range(20)))

    assert [_content(fetched) for fetched in asyncio.run(main())] == [
        [(at, ITEMS[at]), (at + 1, ITEMS[at + 1])] for at in range(20)
    ]


def test_all_calls_have_a_twin(reader, gateway):
    """Prefetch and lookup can be awaited too, and errors pass through unchanged."""

    def other(handler, asked):
        if asked.path.endswith("/lookup"):
            handler.send(200, b"\x02")
        else:
            handler.send_json({"resident": 2, "fetching": 0, "refused": 0}, 202)

    gateway.other = other

    async def main():
        assert (await reader.lookup([5, 6])).tolist() == [False, True]
        assert (await reader.prefetch([5, 6]))["resident"] == 2
        with pytest.raises(IndexError):
            await reader.fetch([40])
        fetched = await reader.fetch([1, 2, 3], mode="substitute", take=2, epoch=1, job="j")
        assert len(fetched.data) == 2

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_next_alone(reader, gateway):
    """The answer to a cancelled request is never read as that of a later one."""
    release, begun = threading.Event(), threading.Event()

    def silent(handler, asked):
        begun.set()
        hang(release)(handler, asked)

    gateway.faults = [silent]

    async def main():
        cancelled = asyncio.create_task(reader.fetch([1, 2, 3]))
        await asyncio.to_thread(begun.wait)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        fetched = [await reader.fetch([at], ordered=True) for at in range(4, 10)]
        release.set()
        return fetched

    assert [_content(fetched) for fetched in asyncio.run(main())] == [[(at, ITEMS[at])] for at in range(4, 10)]
