"""Files whose pages are not in memory are read by threads: the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.model.errors import DiskUnavailable
from gateway.server import files
from gateway.server.channel import SMALL, Channel

SIZES = (100, SMALL, SMALL + 1, 3 * 1024**2 + 7)


class Reader:
    """A fake for the reading threads that counts the reads, and hangs on request."""

    def __init__(self) -> None:
        self.reads = 0
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self.failure: Exception | None = None

    async def __call__(self, fd: int, count: int, offset: int) -> bytes:
        """Read, or hang."""
        self.reads += 1
        self.asked.set()
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return os.pread(fd, count, offset)


@pytest.fixture
async def reader() -> Iterator[Reader]:
    """Returns the reader that the server uses for cold files."""
    before, reader = files._read_cold, Reader()
    files.read_cold_by(reader)
    files.SEEN.clear()
    yield reader
    files.read_cold_by(before)


def written(path: Path, size: int, *, cold: bool) -> tuple[int, bytes]:
    """A file, in memory or not."""
    body = os.urandom(size)
    path.write_bytes(body)
    fd = os.open(path, os.O_RDONLY)
    if cold:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return fd, body


async def sent(fd: int, size: int, memory: memoryview | None = None) -> bytes:
    """Send a file, of which bytes may be in memory too, over a socket pair; return the bytes that the peer receives."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, protocol = await loop.create_connection(_Protocol, sock=ours)
    channel = Channel(transport, loop)
    protocol.channel = channel
    span = fd, 0, size, os.fstat(fd).st_ino

    async def send() -> None:
        if not channel.send_now(b"head", [span], memory):
            await channel.send_rest()

    sending = asyncio.create_task(send())
    received = b""
    try:
        while len(received) < size + 4 and not (sending.done() and sending.exception()):
            reading = asyncio.create_task(loop.sock_recv(theirs, 1 << 20))
            await asyncio.wait([reading, sending] if not sending.done() else [reading], return_when="FIRST_COMPLETED")
            if reading.done():
                received += reading.result()
            else:
                reading.cancel()
        await sending
    finally:
        transport.abort()
        channel.lose()
        theirs.close()
    return received


class _Protocol(asyncio.Protocol):
    channel: Channel

    def pause_writing(self) -> None:
        """The peer is slow."""
        self.channel.pause()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.channel.resume()


@pytest.mark.parametrize("size", SIZES)
async def test_a_file_in_memory_is_sent_by_the_loop(tmp_path: Path, reader: Reader, size: int) -> None:
    """Rule: the usual hit costs no thread."""
    fd, body = written(tmp_path / "warm", size, cold=False)
    assert await sent(fd, size) == b"head" + body
    assert reader.reads == 0
    os.close(fd)


@pytest.mark.parametrize("size", SIZES)
async def test_bytes_in_memory_are_sent_without_their_file(tmp_path: Path, reader: Reader, size: int) -> None:
    """Rule: what the socket takes at once comes from memory, and the rest from the file."""
    fd, body = written(tmp_path / "warm", size, cold=False)
    memory = os.urandom(size)
    received = await sent(fd, size, memoryview(memory))
    from_memory = next((at for at in range(size) if received[4 + at] != memory[at]), size)
    assert from_memory == size or from_memory > SMALL
    assert received == b"head" + memory[:from_memory] + body[from_memory:]
    os.close(fd)


@pytest.mark.parametrize("size", SIZES)
async def test_a_file_on_disk_is_read_by_a_thread(tmp_path: Path, reader: Reader, size: int) -> None:
    """Rule: every byte of a file that must first be read from the disk arrives in order."""
    fd, body = written(tmp_path / "cold", size, cold=True)
    assert await sent(fd, size) == b"head" + body
    assert reader.reads > 0
    os.close(fd)


async def test_a_file_that_was_just_written_is_sent_by_the_loop(tmp_path: Path, reader: Reader) -> None:
    """Rule: a file that was just written is in memory and needs no look."""
    size = SIZES[-1]
    fd, body = written(tmp_path / "new", size, cold=True)
    files.just_written((fd, 0, size, os.fstat(fd).st_ino), asyncio.get_running_loop().time())
    assert await sent(fd, size) == b"head" + body
    assert reader.reads == 0
    os.close(fd)


async def test_another_file_on_the_same_descriptor_is_looked_at(tmp_path: Path, reader: Reader) -> None:
    """Rule: what is known of a file says nothing of the next one that gets its descriptor's number."""
    size = SIZES[-1]
    warm, _ = written(tmp_path / "warm", size, cold=False)
    cold, body = written(tmp_path / "cold", size, cold=True)
    await sent(warm, size)
    os.close(warm)
    again = os.open(tmp_path / "cold", os.O_RDONLY)
    assert again == warm
    assert await sent(again, size) == b"head" + body
    assert reader.reads > 0
    os.close(again)
    os.close(cold)


@pytest.mark.parametrize("size", SIZES)
async def test_a_read_that_hangs_ends_its_response_alone(tmp_path: Path, reader: Reader, size: int) -> None:
    """Rule: while the disk hangs the loop continues, and the response breaks off when the store gives up."""
    fd, _ = written(tmp_path / "hung", size, cold=True)
    reader.answers.clear()
    reader.failure = DiskUnavailable("disk", "the disk did not answer")
    sending = asyncio.create_task(sent(fd, size))
    await reader.asked.wait()
    assert not sending.done()
    reader.answers.set()
    with pytest.raises(DiskUnavailable):
        await sending
    os.close(fd)


def test_a_piece_in_memory_is_looked_at_once(tmp_path: Path) -> None:
    """Rule: a range of a piece that is in memory as a whole answers for the whole piece, and for no other one."""
    files.SEEN.clear()
    fd, _ = written(tmp_path / "warm", 2 * files.PIECE, cold=False)
    inode = os.fstat(fd).st_ino
    assert files.in_memory(fd, inode, 1000, 100, 50.0)
    assert files.SEEN[inode, 0] > 50.0
    assert (inode, 1) not in files.SEEN
    os.close(fd)


def test_what_is_remembered_of_files_is_bounded() -> None:
    """Rule: a node that writes file after file remembers a bounded number of them."""
    files.SEEN.clear()
    for inode in range(2 * files._MOST_REMEMBERED):
        files.just_written((0, 0, 1, inode), 50.0)
    assert 0 < len(files.SEEN) <= files._MOST_REMEMBERED
    files.SEEN.clear()


def test_a_piece_with_a_hole_answers_for_ranges_only(tmp_path: Path) -> None:
    """Rule: each range of a partly cached piece is checked separately."""
    files.SEEN.clear()
    fd, _ = written(tmp_path / "cold", files.PIECE, cold=True)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # without read-ahead
    os.pread(fd, 4096, 0)
    for now in (50.0, 50.1):
        assert files.in_memory(fd, os.fstat(fd).st_ino, 0, 4096, now)
        assert not files.in_memory(fd, os.fstat(fd).st_ino, files.PIECE // 2, 4096, now)
    os.close(fd)
