"""Blocking work in threads that the event loop does not wait for."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from gateway.policies.health.breaker import FailureKind
from gateway.store.datasets.incoming import incoming
from gateway.store.files.failures import DiskFault
from gateway.store.files.threads import HUNG_AFTER, LONG, Closer, HangWatch, Threads, once, within


async def test_the_result_of_abandoned_work_is_disposed_of() -> None:
    """Rule: work that exceeds its time is abandoned, and its later result goes to ``abandoned``."""
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


async def test_a_quick_disk_has_small_work_done_in_a_row() -> None:
    """Rule: one thread runs all work that one turn of the event loop submits; each piece has its own result."""
    threads = Threads(8, "test", None, before=lambda: None)
    threads._pace = 1e-4

    def fail() -> int:
        raise ValueError

    works = [threading.get_ident, fail, threading.get_ident]
    first, failed, last = await asyncio.gather(*map(threads.submit, works), return_exceptions=True)
    assert first == last != threading.get_ident()
    assert isinstance(failed, ValueError)
    threads.stop()


async def test_a_quick_disk_has_one_thread_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a thread that is at work also does what is submitted meanwhile; it shares the interpreter with no other one."""
    monkeypatch.setattr("gateway.store.files.threads._STANDSTILL", 3600.0)
    threads, gate, began = Threads(8, "test", None, before=lambda: None), threading.Event(), asyncio.Event()
    threads._pace = 1e-4
    loop = asyncio.get_running_loop()

    def work() -> int:
        loop.call_soon_threadsafe(began.set)
        gate.wait(30)
        return threading.get_ident()

    first = threads.submit(work)
    await began.wait()
    second = threads.submit(threading.get_ident)
    await asyncio.sleep(0)
    gate.set()
    assert await first == await second
    threads.stop()


async def test_work_does_not_wait_for_a_thread_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a call that a disk does not answer, quick as it was before, delays other work for a moment only."""
    monkeypatch.setattr("gateway.store.files.threads._STANDSTILL", 0.001)
    threads, gate = Threads(8, "test", None, before=lambda: None), threading.Event()
    threads._pace = 1e-4
    first = threads.submit(partial(gate.wait, 30))
    await asyncio.sleep(0)
    await threads.submit(gate.set)
    assert await first is True
    threads.stop()


async def test_a_slow_disk_has_small_work_done_at_once() -> None:
    """Rule: work waits for no other work of its turn unless the disk has shown that it is quick."""
    threads, meeting = Threads(8, "test", None, before=lambda: None), threading.Barrier(3)
    await asyncio.gather(*(threads.submit(partial(meeting.wait, 30)) for _ in range(3)))
    threads.stop()


async def test_what_precedes_a_row_fails_all_of_it() -> None:
    """Rule: no piece of a row is done when the disk turns out to be another one before."""
    done: list[int] = []

    def refuse() -> None:
        raise DiskFault(FailureKind.GONE)

    threads = Threads(8, "test", None, before=refuse)
    threads._pace = 1e-4
    works = [threads.submit(partial(done.append, number)) for number in range(3)]
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [DiskFault] * 3
    assert done == []
    threads.stop()


async def test_a_fault_is_heard_of_when_nobody_waits_any_more() -> None:
    """Rule: a reader that leaves hides no failure of the disk."""
    heard: list[DiskFault] = []
    threads, gate = Threads(1, "test", None, heard.append), threading.Event()

    def fail() -> None:
        gate.wait(30)
        raise DiskFault(FailureKind.IO)

    threads.submit(fail).cancel()
    gate.set()
    await threads.submit(lambda: None)
    assert [fault.kind for fault in heard] == [FailureKind.IO]
    threads.stop()


async def test_an_uploaded_file_is_private_and_whole(tmp_path: Path) -> None:
    """Rule: bytes are in the file in their order once it is complete, readable by its owner only."""
    pieces = [bytes([number]) * 300_000 for number in range(8)]
    async with incoming(tmp_path / "file", 1 << 30, 0) as file:
        for piece in pieces:
            await file.write(piece)
        await file.complete()
        assert file.path.read_bytes() == b"".join(pieces)
    assert file.path.stat().st_mode & 0o777 == 0o600


async def test_a_disk_that_does_not_answer_is_noticed_before_it_counts_as_hung() -> None:
    """Rule: other nodes are told early that a call has not returned; a call that may take long tells nothing."""
    watch = HangWatch(lambda fault: None)
    small, long = watch.station(), watch.station()
    long.begin(LONG)
    small.begin(HUNG_AFTER)
    assert (watch.waits_for(0.0), watch.waits_for(HUNG_AFTER)) == (True, False)
    small.end()
    assert not watch.waits_for(0.0)
    watch.close()


def _opened(path: Path) -> list[int]:
    path.write_bytes(b"")
    return [os.open(path, os.O_RDONLY) for _ in range(32)]


def _left(path: Path, descriptors: list[int]) -> int:
    """How many of the descriptors still have the file open."""
    still_open = [fd for fd in descriptors if os.path.exists(f"/proc/self/fd/{fd}")]
    return sum(os.path.samestat(os.fstat(fd), path.stat()) for fd in still_open)


async def test_descriptors_are_closed_together(tmp_path: Path) -> None:
    """Rule: a thread closes descriptors once 32 have gathered that may be closed soon."""
    closer, done, path, loop = Closer(), asyncio.Event(), tmp_path / "file", asyncio.get_running_loop()
    descriptors = _opened(path)
    for fd in descriptors[:-1]:
        closer.close_soon(fd)
    assert _left(path, descriptors) == 32
    closer.close_soon(descriptors[-1])
    closer.submit(lambda: loop.call_soon_threadsafe(done.set))
    async with asyncio.timeout(30):
        await done.wait()
    assert _left(path, descriptors) == 0


def test_gathered_descriptors_are_closed_on_demand(tmp_path: Path) -> None:
    """Rule: ``flush`` closes those that have gathered, at once if their files still have names."""
    closer, path = Closer(), tmp_path / "file"
    *gathered, other = descriptors = _opened(path)
    for fd in gathered:
        closer.close_soon(fd)
    closer.flush()
    assert _left(path, descriptors) == 1
    os.close(other)
