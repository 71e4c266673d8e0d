"""The unix socket of a gateway, for clients on its machine: the same HTTP as over TCP, without TCP's cost.

Any user of the machine may connect, as to a port: every request is signed. So the socket has mode 0666, and the permissions of
its folder restrict access. A folder that every user can write to is refused, because anyone could put a socket there.

A path belongs to one gateway at a time. A killed gateway leaves its socket behind. Unlike a socket in use, it accepts no
connections, so it is replaced. A gateway that stops removes its socket, unless another gateway has replaced it.

The same path may lead to another gateway on another machine, or to an impostor. So the gateway gives its clients the inode's
number and time of change together with the path (``LocalAddress``); no user can set that time.

Open files can be sent over the socket (SCM_RIGHTS, unix(7)): the peer reads blobs itself. A process that holds a descriptor can
reopen its file through /proc/self/fd, for writing if the file's mode permits. Blobs are writable for the gateway's user and
root, so those two get bytes; all other users may get descriptors. Descriptors sent but not yet received stay open in the kernel,
on the gateway's account, so their number is bounded.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import stat
import struct
import termios
from typing import Any, NamedTuple, Protocol

from gateway.model.errors import ConfigError

LOCAL = "_LARDER_LOCAL"
"""The environment variable that passes the ``LocalAddress`` to every worker; empty if there is none."""
IN_FLIGHT = 4096
"""Descriptors that one worker may have in flight (sent but not received); at most a quarter of those it may open."""
_EVERYBODY = 0o111
"""File mode creation mask of the socket: everyone may read and write, and thus connect."""
_ROOT = 0
"""User id."""
_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of the peer (SO_PEERCRED, unix(7))."""


class LocalAddress(NamedTuple):
    """A listening unix socket: its path, its inode's number, and when the inode changed (Unix time in ns)."""

    path: str
    inode: int
    changed_ns: int

    @classmethod
    def at(cls, path: str) -> LocalAddress:
        """The socket that is now at a path.

        Raises:
            OSError: nothing is there, or it cannot be reached.
        """
        status = os.lstat(path)
        return cls(path, status.st_ino, status.st_ctime_ns)

    @classmethod
    def parse(cls, text: str) -> LocalAddress | None:
        """Parse the result of ``str``; ``None`` if it is empty."""
        return cls(*json.loads(text)) if text else None

    def __str__(self) -> str:
        return json.dumps(self)


class LocalListener:
    """A listening unix socket.

    Args:
        path: its absolute path.
        backlog: connections that may wait to be accepted.

    Raises:
        ConfigError: the folder does not exist, cannot be written, or can be written by everyone; another process listens
            there; or the path is taken by something else.
    """

    def __init__(self, path: str, backlog: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _clear(path)
            # Not chmod: it would follow a link that another user may put there in between.
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
        """Stop listening, and remove the socket file if it is still this socket's."""
        self.socket.close()
        try:
            if LocalAddress.at(self.address.path) == self.address:
                os.unlink(self.address.path)
        except OSError:  # already removed, perhaps with the folder
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


def is_another_user(sock: socket.socket | None) -> bool:
    """Whether the peer of a connection is a user who cannot write blobs; never true over TCP."""
    if sock is None or sock.family != socket.AF_UNIX:
        return False
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user not in (_ROOT, os.geteuid())


class Receiver(Protocol):
    """A connection over which descriptors are sent."""

    lost: bool

    def unreceived(self) -> bool:
        """Whether the peer has yet to receive some bytes."""


class DescriptorsInFlight:
    """The descriptors that one worker's peers have not received yet.

    Args:
        limit: their maximum number.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sent: dict[Receiver, int] = {}
        self._sending: set[Receiver] = set()

    def admit(self, receiver: Receiver, count: int) -> bool:
        """Whether ``count`` descriptors may be sent; if so, they count until they are ``sent`` and received."""
        if receiver.unreceived():
            return False
        self._sent.pop(receiver, None)
        self._sending.discard(receiver)
        if sum(self._sent.values()) + count > self._limit:
            self._forget_received()
        if sum(self._sent.values()) + count > self._limit:
            return False
        self._sent[receiver] = count
        self._sending.add(receiver)
        return True

    def admit_another(self, receiver: Receiver, unsent: int) -> bool:
        """Whether the answer that ``receiver`` was admitted for may have one more, besides ``unsent`` that were admitted."""
        if sum(self._sent.values()) >= self._limit:
            self._forget_received()
            if not receiver.unreceived():
                self._sent[receiver] = unsent
        if sum(self._sent.values()) >= self._limit:
            return False
        self._sent[receiver] = self._sent.get(receiver, 0) + 1
        return True

    def sent(self, receiver: Receiver) -> None:
        """Note that all admitted ones were sent: they count until the peer has received everything."""
        self._sending.discard(receiver)

    def _forget_received(self) -> None:
        self._sending = {other for other in self._sending if not other.lost}
        self._sent = {
            other: count
            for other, count in self._sent.items()
            if other in self._sending or (not other.lost and other.unreceived())
        }


class Passing:
    """The descriptors in flight of one connection, counted in ``DescriptorsInFlight``.

    Args:
        in_flight: of its worker.
        receiver: the connection.
    """

    def __init__(self, in_flight: DescriptorsInFlight, receiver: Receiver) -> None:
        self._in_flight = in_flight
        self._receiver = receiver

    def admit(self, count: int) -> bool:
        """Whether ``count`` descriptors may be sent now; if so, they count from now on."""
        return self._in_flight.admit(self._receiver, count)

    def admit_another(self, unsent: int) -> bool:
        """Whether the same answer may have one more, besides ``unsent`` that were admitted; if so, it counts from now on."""
        return self._in_flight.admit_another(self._receiver, unsent)

    def sent(self) -> None:
        """Note that all of them were sent."""
        self._in_flight.sent(self._receiver)


def in_flight_of(server_state: Any) -> DescriptorsInFlight:
    """The descriptors in flight of a connection's server, which are in the state that its connections share."""
    descriptors: DescriptorsInFlight | None = getattr(server_state, "descriptors", None)
    if descriptors is None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        descriptors = server_state.descriptors = DescriptorsInFlight(min(IN_FLIGHT, files // 4))
    return descriptors


def unreceived_bytes(descriptor: int) -> int:
    """Bytes that a unix socket has sent and its peer has not received, with the kernel's overhead (SIOCOUTQ).

    Raises:
        OSError: the socket is closed.
    """
    answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(answer, "little")
