"""HTTP over the unix socket of a gateway on this machine.

A path alone proves nothing: here it may lead to another gateway or to an impostor, and after a restart to a new socket. So the
gateway names the inode of its socket and when that changed, which nobody can set, and the socket is used only while the path
leads to it.
"""

from __future__ import annotations

import os
import socket
import stat
from http.client import HTTPConnection
from typing import NamedTuple


class LocalSocket(NamedTuple):
    """A unix socket of this machine: its path, and the number of its inode and when that changed (Unix time in ns)."""

    path: str
    inode: int
    changed_ns: int

    @classmethod
    def named(cls, named: object) -> LocalSocket | None:
        """The socket that a fleet document names, if this machine has it and this process may connect to it."""
        if not isinstance(named, dict) or not isinstance(path := named.get("path"), str):
            return None
        found = cls.at(path)
        same = found == (path, named.get("inode"), named.get("changed_ns"))
        return found if same and os.access(path, os.W_OK) else None

    @classmethod
    def at(cls, path: str) -> LocalSocket | None:
        """The socket at a path; ``None`` if there is none on this machine."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        return cls(path, status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None


class LocalConnection(HTTPConnection):
    """A connection over a unix socket.

    Args:
        local: the socket.
        host: of the gateway; it is only named in the request.
        timeout: seconds of silence after which a request fails.
        blocksize: bytes that an upload reads from its file at a time.
    """

    def __init__(self, local: LocalSocket, host: str, *, timeout: float, blocksize: int) -> None:
        super().__init__(host, timeout=timeout, blocksize=blocksize)
        self._local = local

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: nobody listens there, or the path leads to another socket.
        """
        path = self._local.path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(path)
            if LocalSocket.at(path) != self._local:
                raise FileNotFoundError(f"{path} is not the socket that it was")
        except BaseException:
            sock.close()
            raise
        self.sock = sock
