"""The sending side of one connection: bytes through the transport, files by sendfile.

Two writers share one socket, so one rule keeps the bytes in order: nothing bypasses the transport while it holds bytes. Its
buffer limit is zero, so ``paused`` means that it holds bytes, and a slow reader costs at most one message.

asyncio owns the transport's file descriptor and forbids ``add_writer`` on it, so files are sent through a duplicate. The
duplicate is created for the first file and closed when the transport is lost; only then does the peer see the end of the
connection. The wait for a slow reader is one callback each time the socket becomes writable; the request's task is woken once,
at the end. Parts of a file that are not in memory are not sent by sendfile, which would wait for the disk: a thread reads them,
and the transport sends them (files.py).

Measured on one core over loopback, with whole requests: up to 16 KiB, a pread and a write are cheaper than a write and a
sendfile.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from gateway.base.shortages import SHORTAGES
from gateway.model.errors import BlobGone, ClientGone, DiskUnavailable
from gateway.server.files import PIECE, SEEN, FileSpan, in_memory, just_written, read_at_once, read_slowly
from gateway.server.local import unreceived_bytes

SMALL = 16 * 1024
"""Files up to this many bytes are read and sent together with the head."""
TURN = 8 * 1024**2
"""Bytes sent in one go after which a fast connection lets other connections run."""
MOST_DESCRIPTORS = 253
"""Descriptors of one message (SCM_MAX_FD, unix(7))."""
_COLD = 1024**2
"""Bytes that are read at once from a file not in memory."""
_ACKED = struct.Struct("120xQ")
"""``tcpi_bytes_acked`` in struct tcp_info (linux/tcp.h)."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_FILE_FAULTS = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODATA, errno.EUCLEAN, errno.EREMOTEIO, errno.EBADF}
)


class Sender(Protocol):
    """The connection, which is notified when an answer waits for the peer to accept more of it."""

    def reader_is_behind(self) -> None:
        """The answer now waits for the peer."""

    def reader_came(self) -> None:
        """The peer has accepted something, or has left."""


class Channel:
    """The sending side of a connection.

    One send at a time: the caller starts the next one only after the previous one has returned.
    """

    __slots__ = (
        "_cold",
        "_done",
        "_head",
        "_loop",
        "_out",
        "_sender",
        "_spans",
        "_stall",
        "_stalled_after",
        "_tail",
        "_writable",
        "descriptor",
        "lost",
        "paused",
        "transport",
        "zero_copy",
    )

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, sender: Sender | None = None
    ) -> None:
        self.transport = transport
        self._sender = sender
        self.zero_copy = transport.get_extra_info("sslcontext") is None and hasattr(os, "sendfile")
        self.paused = False
        self.lost = False
        self._loop = loop
        self._writable: asyncio.Future[None] | None = None
        self._out: socket.socket | None = None
        self.descriptor = -1
        """Number of the open file behind ``_out``; -1 without one."""
        self._done: asyncio.Future[None] | None = None
        self._head: bytes | None = None
        """The bytes that the transport must accept before the spans; ``None`` if the spans may be sent."""
        self._spans: deque[FileSpan] = deque()
        self._tail: bytes | memoryview | None = None
        """Bytes that follow the head, if there are no spans."""
        self._cold = False
        self._stalled_after = 0.0
        self._stall: asyncio.TimerHandle | None = None
        if self.zero_copy:
            transport.set_write_buffer_limits(high=0)

    def pause(self) -> None:
        """Note that the transport holds bytes that the peer has not accepted."""
        self.paused = True
        self._expect_progress()

    def resume(self) -> None:
        """Note that the transport holds no more bytes than its limit."""
        self.paused = False
        self._expect_nothing()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    async def drain(self) -> None:
        """Wait until the transport accepts bytes again.

        Raises:
            ClientGone: the connection was lost, now or before.
        """
        while self.paused and not self.lost:
            self._writable = self._loop.create_future()
            await self._taken(self._writable)
        if self.lost or self.transport.is_closing():
            raise ClientGone("the client is gone")

    async def send_files(self, head: bytes, spans: Sequence[FileSpan]) -> None:
        """Send ``head`` and then spans of files; returns when the kernel has accepted all.

        Raises:
            ClientGone: the connection was lost, now or before.
            BlobGone: a file ended before the end of its span.
            DiskUnavailable: a file could not be read.
        """
        if not self.send_now(head, spans):
            await self.send_rest()

    def send_now(self, head: bytes, spans: Sequence[FileSpan], memory: bytes | memoryview | None = None) -> bool:
        """Send ``head`` and then spans of files, until the socket would block.

        Args:
            head: sent first.
            spans: of open files.
            memory: the bytes of the only span, whose file was just written: one system call sends them with the head; the rest
                is sent from the file, or kept by the transport if there is no span.

        Returns:
            Whether all is sent; if not, ``send_rest`` must follow. Raises what ``send_files`` raises.
        """
        if self.paused or self.lost or self.transport.is_closing():
            self._head, self._spans, self._cold = head, deque(spans), False
            self._tail = None if spans else memory
            return False
        if memory is not None and not spans:
            self.write_now((head, memory))
            return True
        if len(spans) == 1 and spans[0][2] <= SMALL and memory is None:
            fd, offset, count, _ = spans[0]
            if (data := read_at_once(fd, count, offset)) is not None:
                self.write_now((head, data))
                return True
            self._head, self._spans, self._cold = head, deque(spans), True
            return False
        try:
            out = self._out or self._duplicate()
            try:
                if memory is not None:
                    sent = out.sendmsg((head, memory))
                else:
                    sent = out.send(head, socket.MSG_MORE) if head else 0
            except BlockingIOError:
                sent = 0
            if sent < len(head):
                self._head, self._spans, self._cold = head[sent:], deque(spans), False
                return False
            if len(spans) == 1:
                fd, offset, count, inode = spans[0]
                sent -= len(head)
                if (
                    memory is None
                    and offset % PIECE + count <= PIECE
                    and self._loop.time() < SEEN.get((inode, offset // PIECE), 0.0)
                ):
                    # The first step of _push in place: for most hits it is the only one.
                    try:
                        sent = os.sendfile(out.fileno(), fd, offset, count)
                    except BlockingIOError:
                        sent = 0
                if sent == count:
                    return True
                if memory is not None:
                    just_written(spans[0], self._loop.time())
                spans = ((fd, offset + sent, count - sent, inode),)
            self._head, self._spans = None, deque(spans)
            return self._push()
        except OSError as error:
            raise self._explained(error) from None

    def write_now(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write bytes; the transport (empty before) keeps those that the socket does not accept, as a copy if they may change."""
        if self.descriptor < 0:
            self._duplicate()
        try:
            sent = os.writev(self.descriptor, pieces)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.transport.abort()
            return
        if sent != sum(map(len, pieces)):
            self.keep(pieces, sent)

    def keep(self, pieces: Sequence[bytes | bytearray | memoryview], sent: int) -> None:
        """Have the transport, which is empty, send pieces of which ``sent`` bytes are sent; -1: the socket has failed."""
        if sent < 0:
            self.transport.abort()
            return
        for piece in pieces:
            if sent < len(piece):
                left = memoryview(piece)[sent:]
                self.transport.write(left if type(left.obj) is bytes else bytes(left))
            sent = max(0, sent - len(piece))

    async def send_rest(self) -> None:
        """Send the bytes that ``send_now`` did not send. Raises what ``send_files`` raises."""
        try:
            out = self._out or self._duplicate()
            done = False
            if self._head is not None:
                await self.drain()
                self.transport.write(self._head)
                if self._tail is not None:
                    self.transport.write(self._tail)
                    self._tail = None
                await self.drain()
                done = not self._cold and self._push()
            while not done:
                if self._cold:
                    await self._send_cold()
                else:
                    await self._wait_for_reader(out)
                done = self._push()
        except OSError as error:
            raise self._explained(error) from None

    async def send_descriptors(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Send bytes with open files attached, over a unix socket; the caller may close them when this returns.

        Args:
            data: at least one byte for each ``MOST_DESCRIPTORS`` descriptors.
            descriptors: of the files, in order.

        Raises:
            ClientGone: the connection was lost, now or before, or the kernel refuses more descriptors in flight.
        """
        if self.paused or self.lost or self.transport.is_closing():
            await self.drain()
        groups = [descriptors[at : at + MOST_DESCRIPTORS] for at in range(0, len(descriptors), MOST_DESCRIPTORS)]
        left = memoryview(data)
        try:
            out = self._out or self._duplicate()
            for number, group in enumerate(groups, 1):
                # One byte is enough to carry a group; the last one carries the rest.
                piece = left[:1] if number < len(groups) else left
                left = left[await self._attach(out, piece, group) :]
        except OSError as error:
            raise self._explained(error) from None
        if left:
            self.transport.write(bytes(left))

    async def _attach(self, out: socket.socket, piece: memoryview, group: Sequence[int]) -> int:
        """Send a message with descriptors; returns how many of its bytes were sent."""
        while True:
            try:
                return socket.send_fds(out, [piece], list(group))
            except BlockingIOError:
                await self._wait_for_reader(out)

    def unreceived(self) -> bool:
        """Whether the peer of a unix socket has yet to receive some bytes."""
        if self.paused or self.lost or self.transport.is_closing():
            return not self.lost
        try:
            return unreceived_bytes((self._out or self._duplicate()).fileno()) > 0
        except OSError:
            return False

    def give_up_after(self, seconds: float) -> None:
        """End the connection if the peer accepts no byte for ``seconds``: by the kernel for TCP, by timers for unix sockets."""
        sock = self.transport.get_extra_info("socket")
        if sock is None:
            return
        if sock.family == socket.AF_UNIX:
            self._stalled_after = seconds
        elif hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def taken(self) -> int | None:
        """Bytes that the peer has acknowledged since the connection began; ``None`` where the system does not report them."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
            return None
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.size)
        except OSError:  # already closed
            return None
        return int(_ACKED.unpack(info)[0]) if len(info) == _ACKED.size else None

    def break_off(self) -> None:
        """Reset the connection, so that the peer does not consider the response complete (RFC 9112 section 8)."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            except OSError:  # already closed
                pass
        self.transport.abort()

    def lose(self) -> None:
        """Note that the transport is gone: wake the waiting task, and release the socket."""
        self.lost = True
        self.resume()
        if self._done is not None and not self._done.done():
            self._done.set_exception(ClientGone("the client is gone"))
        if self._out is not None:
            if self._done is not None:
                self._loop.remove_writer(self._out)
            self._out.close()
            self._out, self.descriptor = None, -1

    def _duplicate(self) -> socket.socket:
        if self.lost:  # its number may belong to another connection by now
            raise ClientGone("the client is gone")
        original = cast(socket.socket, self.transport.get_extra_info("socket"))
        self._out = socket.socket(original.family, original.type, original.proto, fileno=os.dup(original.fileno()))
        self._out.setblocking(False)
        self.descriptor = self._out.fileno()
        return self._out

    def _push(self) -> bool:
        """Send until all is sent (true); or the socket is full, other connections must run, or ``_cold`` is set (false)."""
        self._cold = False
        now, spans = self._loop.time(), self._spans
        assert self._out is not None
        out = self._out.fileno()
        turn = TURN
        while spans and turn > 0:
            fd, offset, left, inode = spans[0]
            piece = offset // PIECE
            count = min(left, (piece + 1) * PIECE - offset)
            if now >= SEEN.get((inode, piece), 0.0) and not in_memory(fd, inode, offset, count, now):
                self._cold = True
                return False
            try:
                sent = os.sendfile(out, fd, offset, count)
            except BlockingIOError:
                return False
            if not sent:
                raise BlobGone(f"a file ended {left} bytes early")
            turn -= sent
            if sent == left:
                spans.popleft()
                continue
            spans[0] = (fd, offset + sent, left - sent, inode)
            if sent < count:
                return False
        return not spans

    async def _send_cold(self) -> None:
        fd, offset, left, inode = self._spans.popleft()
        data = await read_slowly(fd, min(left, _COLD), offset)
        await self.drain()
        self.transport.write(data)
        await self.drain()
        if left > len(data):
            self._spans.appendleft((fd, offset + len(data), left - len(data), inode))

    async def _taken(self, waited: asyncio.Future[None]) -> None:
        """Wait until the peer has accepted something."""
        sender = self._sender
        if sender is None:
            await waited
            return
        sender.reader_is_behind()
        try:
            await waited
        finally:
            sender.reader_came()

    async def _wait_for_reader(self, out: socket.socket) -> None:
        self._done = self._loop.create_future()
        self._loop.add_writer(out, self._on_writable)
        self._expect_progress()
        try:
            await self._taken(self._done)
        finally:
            self._expect_nothing()
            self._done = None
            if not self.lost:
                self._loop.remove_writer(out)
        if self.lost:  # after ``_on_writable`` had set the result
            raise ClientGone("the client is gone")

    def _on_writable(self) -> None:
        done = self._done
        if done is None or done.done():
            return
        self._expect_progress()
        try:
            if self._push() or self._cold:
                done.set_result(None)
        except (OSError, BlobGone) as error:
            done.set_exception(error)

    def _expect_progress(self) -> None:
        self._expect_nothing()
        if self._stalled_after:
            unsent = self.transport.get_write_buffer_size()
            self._stall = self._loop.call_later(self._stalled_after, self._on_stall, unsent)

    def _on_stall(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._expect_progress()
        else:
            self.transport.abort()

    def _expect_nothing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _explained(self, error: OSError) -> Exception:
        if isinstance(error, ClientGone):
            return error
        if error.errno in _FILE_FAULTS:
            return DiskUnavailable("disk", str(error))
        SHORTAGES.record(error, "sending an answer")
        self.transport.abort()
        return ClientGone(str(error))
