"""The TCP sockets of a gateway: for clients, and for operators' browsers.

A browser separates pages by origin: scheme, host and port. Pages that hold an admin token therefore have a separate port, where
no object is served (docs/decisions/0040-operators-pages-have-an-origin-of-their-own.md).
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from gateway.base.config_server import ServerSettings
from gateway.model.errors import ConfigError

BACKLOG = 2048
_ABOVE, _BELOW, _HIGH = 10_000, 20_000, 22_768
_BLOCKED = frozenset(
    {3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080}
)  # fmt: skip
"""The ports, of those that ``usual_port`` can give, that browsers refuse to open (WHATWG, Fetch, "bad port")."""


def listen(settings: ServerSettings) -> socket.socket:
    """A listening socket at the configured address; port 0 picks a free one.

    Raises:
        ConfigError: the address is unknown or in use.
    """
    return _listen(settings.host, settings.port, "server.host, server.port", "--port names another")


def listen_for_operators(address: str, settings: ServerSettings, clients: socket.socket) -> socket.socket | None:
    """A listening socket for operators' pages.

    Args:
        address: ``HOST:PORT``; empty for the host of clients and ``usual_port``, or a free port if that is taken.
        settings: of the server.
        clients: the listening socket for clients.

    Returns:
        The socket; ``None`` if no address was configured and no port is free.

    Raises:
        ConfigError: the configured address is unknown or in use.
    """
    if address:
        host, _, number = address.rpartition(":")
        return _listen(host.strip("[]"), int(number), "admin.address", "choose another, or none for a free port")
    usual = usual_port(clients.getsockname()[1])
    for port in (0,) if usual in _BLOCKED else (usual, 0):
        with suppress(ConfigError):
            return _listen(settings.host, port, "admin.address", "")
    return None


def usual_port(port: int) -> int:
    """The port of operators' pages beside clients' ``port``: 10,000 above, or 20,000 below."""
    return port + _ABOVE if port < _HIGH else port - _BELOW


def address_of(listener: socket.socket, *, tls: bool) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _listen(host: str, port: int, names: str, remedy: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = f"{reason}; {remedy}"
        raise ConfigError(f"{names}: cannot listen on {host}:{port}: {reason}") from None
    listener.set_inheritable(True)
    return listener
