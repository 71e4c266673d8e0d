"""Blocking work in threads that the event loop does not wait for."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gateway.store.datasets.incoming import incoming
from gateway.store.threads import once, within


async def test_the_result_of_abandoned_work_is_disposed_of() -> None:
    """Rule: work that outlasts its time is left behind, and what it returns later goes to ``abandoned``."""
    gate, dropped = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        await within(0.01, lambda: gate.wait(30), lambda _: loop.call_soon_threadsafe(dropped.set))
    gate.set()
    async with asyncio.timeout(30):
        await dropped.wait()


async def test_a_call_that_hangs_delays_no_other() -> None:
    """Rule: each call has a daemon thread, so neither other calls nor the end of the process wait for it."""
    gate = threading.Event()
    hanging = once.submit(gate.wait, 30)
    assert await asyncio.wrap_future(once.submit(lambda: threading.current_thread().daemon)) is True
    gate.set()
    assert await asyncio.wrap_future(hanging) is True


async def test_an_uploaded_file_is_private_and_whole(tmp_path: Path) -> None:
    """Rule: bytes are in the file in their order once it is complete, readable by its owner only."""
    pieces = [bytes([number]) * 300_000 for number in range(8)]
    async with incoming(tmp_path / "file", 1 << 30, 0) as file:
        for piece in pieces:
            await file.write(piece)
        await file.complete()
        assert file.path.read_bytes() == b"".join(pieces)
    assert file.path.stat().st_mode & 0o777 == 0o600
