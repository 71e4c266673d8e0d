"""The unix socket of a gateway, for clients on its machine: the same HTTP as over TCP, without TCP's cost.

Any user of the machine may connect, as to a port: every request is signed. So the socket has mode 0666, and the permissions of
its folder restrict who reaches it. A folder that every user can write to is refused: they could put a socket of their own there.

A path belongs to one gateway at a time. A gateway that was killed leaves its socket behind; nobody accepts connections there,
which tells it from one in use, and it is replaced. A gateway that stops removes its socket, unless it is another one's by then.

The same path may lead to another gateway on another machine, or to an impostor. So the gateway tells its clients the inode's
number and time of change beside the path (``LocalAddress``); nobody can set that time.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from typing import NamedTuple

from gateway.model.errors import ConfigError

LOCAL = "_LARDER_LOCAL"
"""The environment variable that passes the ``LocalAddress`` to every worker; empty if there is none."""
_EVERYBODY = 0o111
"""File mode creation mask of the socket: everyone may read and write, which is to connect."""


class LocalAddress(NamedTuple):
    """A listening unix socket: its path, and the number of its inode and when that changed (Unix time in ns)."""

    path: str
    inode: int
    changed_ns: int

    @classmethod
    def at(cls, path: str) -> LocalAddress:
        """What is at a path now.

        Raises:
            OSError: nothing, or it cannot be reached.
        """
        status = os.lstat(path)
        return cls(path, status.st_ino, status.st_ctime_ns)

    @classmethod
    def parse(cls, told: str) -> LocalAddress | None:
        """What ``str`` gave; ``None`` if it is empty."""
        return cls(*json.loads(told)) if told else None

    def __str__(self) -> str:
        return json.dumps(self)


class LocalListener:
    """A listening unix socket.

    Args:
        path: where; absolute.
        backlog: connections that may wait to be accepted.

    Raises:
        ConfigError: the folder does not exist, cannot be written, or can be written by everyone; another process listens
            there; or the path is taken by something else.
    """

    def __init__(self, path: str, backlog: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _clear(path)
            # Not chmod: it would follow a link that somebody puts there meanwhile.
            mask = os.umask(_EVERYBODY)
            try:
                self.socket.bind(path)
            finally:
                os.umask(mask)
            self.address = LocalAddress.at(path)
            self.socket.listen(backlog)
        except (OSError, ConfigError) as error:
            self.socket.close()
            if isinstance(error, ConfigError):
                raise
            raise _refusal(f"cannot listen on {path}: {error.strerror}") from None
        self.socket.set_inheritable(True)

    def close(self) -> None:
        """Stop listening, and remove the socket if it is still this one."""
        self.socket.close()
        try:
            if LocalAddress.at(self.address.path) == self.address:
                os.unlink(self.address.path)
        except OSError:  # removed already, or the folder was
            pass


def _clear(path: str) -> None:
    """Remove a socket on which no process listens."""
    folder = os.stat(os.path.dirname(path)).st_mode
    if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        raise _refusal(f"every user can write to the folder of {path}, and put another socket there")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _refusal(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:  # its backlog is full
            pass
    raise _refusal(f"another process listens on {path}")


def _refusal(reason: str) -> ConfigError:
    return ConfigError(f"server.unix_socket: {reason}")
