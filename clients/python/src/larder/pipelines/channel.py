"""Messages between the trainer and a worker process of this machine.

A socket carries messages; elements travel beside them, as descriptors of memory without a name (`larder.base.anonymous`). The
trainer maps the memory it receives, so elements are copied once, by the worker, and killed processes leave nothing behind. Both
ends belong to one user and one program, so messages are pickled; elements are not.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from larder.base.anonymous import anonymous_file
from larder.base.errors import PipelineError
from larder.pipelines.elements import ALIGNMENT, Encoded

_LENGTH = struct.Struct("<I")
_MOST_PIECES = 512
"""Buffers of one writev; the system allows 1024."""


class Channel:
    """One end of a socket. Sending is for one thread at a time.

    Args:
        sock: connected; owned by the channel.
    """

    cannot_load = (
        "Functions of a notebook or a script need the package cloudpickle (pip install 'larder[pipelines]'), "
        "or a module of their own"
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def memory(self) -> SharedPart:
        """See `larder.pipelines.worker.WorkerLink`."""
        return SharedPart()

    def send(self, message: object, memory: SharedPart | None = None) -> None:
        """Send a message, and with it the descriptor of a part's memory.

        Raises:
            EOFError: the other end is gone.
        """
        payload = pickle.dumps(message)
        frame = _LENGTH.pack(len(payload)) + payload
        try:
            sent = socket.send_fds(self.sock, [frame], [] if memory is None else [memory.descriptor])
            self.sock.sendall(frame[sent:])
        except ConnectionError as error:
            raise EOFError from error

    def receive(self) -> tuple[Any, int | None]:
        """The next message and the descriptor that came with it.

        Raises:
            EOFError: the other end is gone.
        """
        try:
            head, descriptors, _, _ = socket.recv_fds(self.sock, _LENGTH.size, 1)
            head += self._exactly(_LENGTH.size - len(head)) if head else b""
            if not head:
                raise EOFError
            message = pickle.loads(self._exactly(_LENGTH.unpack(head)[0]))  # noqa: S301 - from our own process
        except ConnectionError as error:
            raise EOFError from error
        return message, descriptors[0] if descriptors else None

    def close(self) -> None:
        """Close this end; the other one sees the end of the stream."""
        self.sock.close()

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            piece = self.sock.recv(size - len(received))
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)


class SharedPart:
    """Elements of one part, written consecutively into memory without a name.

    Raises:
        PipelineError: there is no memory for it.
    """

    def __init__(self) -> None:
        with _memory_errors():
            self.descriptor = anonymous_file("larder-elements")
        self.size = 0

    def append(self, element: Encoded) -> tuple[int, int]:
        """Copy an element; its offset and size.

        Raises:
            PipelineError: there is not enough memory.
        """
        start = -(-self.size // ALIGNMENT) * ALIGNMENT
        with _memory_errors():
            os.lseek(self.descriptor, start, os.SEEK_SET)
            _write(self.descriptor, element.buffers())
        self.size = start + element.size
        return start, element.size

    def close(self) -> None:
        """Close the descriptor, once. Existing mappings of the memory stay valid."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """A worker that is out of memory must not look like one whose trainer is gone."""
    try:
        yield
    except OSError as error:
        raise PipelineError(
            f"there is no memory to share with input workers ({error}): lower workers= or queue_bytes=, or free memory"
        ) from error


def mapped(descriptor: int, size: int) -> memoryview:
    """Map a descriptor's memory and close the descriptor. The memory lives as long as any part of the view; writes to it are
    private."""
    try:
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY))
    finally:
        os.close(descriptor)


def _write(descriptor: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        written = os.writev(descriptor, left[:_MOST_PIECES])
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]
