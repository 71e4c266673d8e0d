"""HTTP over the unix socket of a gateway on this machine.

A path alone proves nothing: on this machine it may lead to another gateway or to an impostor, and after a restart to a new
socket. So the gateway names the inode of its socket and its time of change, which no user can set. The socket is used only while
the path leads to that inode. The listening process must belong to the owner of the socket, and no other user may be able to put a
different socket into its folder.

The gateway can attach open files to an answer (SCM_RIGHTS, unix(7)). They arrive with bytes that are read into a buffer, so the
connection's socket collects them, and the reader of the answer takes them from there.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from array import array
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple

from larder.http.silence import CONNECT, Silence

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

SUPPORTED = hasattr(socket, "MSG_CMSG_CLOEXEC")
"""Whether this system passes descriptors, and closes them when a program starts another one."""
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC) if SUPPORTED else 0
"""A plain number, because operations of the enumeration take as long as receiving."""
_SPACE = socket.CMSG_SPACE(253 * array("i").itemsize) if SUPPORTED else 0
"""Bytes for the descriptors of one message (SCM_MAX_FD, unix(7))."""
_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of the other end (SO_PEERCRED, unix(7))."""
_SHARE = 4
"""An answer may use this fraction of the descriptors that the process may open."""


class LocalSocket(NamedTuple):
    """A unix socket of this machine: its path, the number of its inode, and the inode's time of change (Unix time in ns)."""

    path: str
    inode: int
    changed_ns: int

    @classmethod
    def named(cls, named: object) -> LocalSocket | None:
        """The socket that a fleet document names, if this machine has it and this process may connect to it."""
        if not isinstance(named, dict) or not isinstance(path := named.get("path"), str):
            return None
        present = cls.at(path)
        same = present == (path, named.get("inode"), named.get("changed_ns"))
        return present if same and _is_safe(path) and os.access(path, os.W_OK) else None

    @classmethod
    def at(cls, path: str) -> LocalSocket | None:
        """The socket at a path; ``None`` if there is none on this machine."""
        try:
            status = os.lstat(path)
        except (OSError, ValueError):
            return None
        return cls(path, status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None


def _is_safe(path: str) -> bool:
    """Whether only the owner of the socket, this user and root can put another socket at this absolute path."""
    if not os.path.isabs(path):
        return False
    owner, folder = os.lstat(path).st_uid, os.stat(os.path.dirname(path))
    shared = folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX
    return not shared and folder.st_uid in (owner, os.geteuid(), 0)


def _listens(sock: socket.socket, path: str) -> bool:
    """Whether the process at the other end belongs to the owner of the socket at a path; true if the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.lstat(path).st_uid)


def acceptable() -> int:
    """Descriptors that one answer may bring; 0 if this system cannot pass them."""
    if not SUPPORTED or resource is None:
        return 0
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors. Descriptors received together mostly have consecutive numbers, and cost one call (close_range(2))."""
    runs: list[list[int]] = []
    for descriptor in sorted(descriptors):
        if runs and runs[-1][1] == descriptor:
            runs[-1][1] += 1
        else:
            runs.append([descriptor, descriptor + 1])
    # Never an empty range: Python would close everything from its start on.
    for start, stop in runs:
        os.closerange(start, stop)


class Attached:
    """The open files that came over a connection and have not been taken, in order."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def add(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        """Keep the descriptors of a message."""
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self._descriptors += numbers

    def take_descriptors(self) -> list[int]:
        """All descriptors; the caller closes them."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def close(self) -> None:
        """Close the descriptors that are left."""
        close_all(self.take_descriptors())


class _AttachingSocket(socket.socket):
    """A unix socket that keeps the open files that come with the bytes."""

    attached: Attached
    silence: Silence

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Like the method of any socket."""
        return self.silence.read(self, lambda: self._receive(memoryview(buffer)[: nbytes or None], flags))

    def _receive(self, view: memoryview, flags: int) -> int:
        count, ancillary, _, _ = self.recvmsg_into([view], _SPACE, flags | _CLOEXEC)
        if ancillary:
            self.attached.add(ancillary)
        return count


class LocalResponse(HTTPResponse):
    """An answer over a unix socket; ``attached`` are the open files that have come with it so far."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        self.attached: Attached = getattr(sock, "attached", Attached())
        super().__init__(sock, *arguments, **options)


class LocalConnection(HTTPConnection):
    """A connection over a unix socket.

    Args:
        local: the socket.
        host: of the gateway; it is only named in the request.
        silence: the limits of its silence.
        blocksize: bytes that an upload reads from its file at a time.
    """

    response_class = LocalResponse

    def __init__(self, local: LocalSocket, host: str, silence: Silence, *, blocksize: int) -> None:
        super().__init__(host, timeout=silence.longest, blocksize=blocksize)
        self.silence = silence
        self.attached = Attached()
        self._local = local

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: no process listens there, or the path leads to another socket.
        """
        path = self._local.path
        sock = (_AttachingSocket if SUPPORTED else socket.socket)(socket.AF_UNIX, socket.SOCK_STREAM)
        if isinstance(sock, _AttachingSocket):
            sock.attached = self.attached
            sock.silence = self.silence
        try:
            sock.settimeout(min(CONNECT, self.silence.longest))
            sock.connect(path)
            sock.settimeout(self.silence.longest)
            if LocalSocket.at(path) != self._local or not _listens(sock, path):
                raise FileNotFoundError(f"{path} is not the socket that it was")
        except BaseException:
            sock.close()
            raise
        self.sock = sock

    def close(self) -> None:
        """Close the connection, and files that came over it and were not taken."""
        super().close()
        self.attached.close()


def way_of(response: HTTPResponse, by_tcp: str, files: bool) -> str:
    """The way of items that come as bytes, as in ``Stats.by_way``; empty if the gateway has no unix socket.

    Args:
        response: of the gateway.
        by_tcp: why the connection uses its address.
        files: whether open files were requested.
    """
    if not isinstance(response, LocalResponse):
        return f"tcp/{by_tcp}" if by_tcp else ""
    return f"socket/{response.headers.get('x-larder-bytes', 'unknown') if files else 'failed'}"
