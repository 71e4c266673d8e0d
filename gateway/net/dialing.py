"""Opens connections: resolves names, tries the addresses of a host, and completes the TLS handshake.

aiohappyeyeballs tries the addresses one after the other, giving each a short head start (RFC 8305). Proxies from the environment
are not used: only the configuration says where an origin is, and its ``endpoint`` may name a forwarding proxy.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import cache, partial
from ipaddress import ip_address
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection
from cachetools import TTLCache

from gateway.base.shortages import SHORTAGES
from gateway.base.tasks import SingleFlight

P = TypeVar("P", bound=asyncio.BaseProtocol)

BUSY = "busy"
"""The kind of a failure for lack of a free connection."""
EXHAUSTED = "exhausted"
"""The kind of a failure for lack of descriptors or memory in this process."""
_NAMES_KEPT = 256
_KEEP_NAME = 60.0
"""Seconds for which a resolved name is cached."""
_HEAD_START = 0.25
"""Seconds that an address has before the next one is tried too (RFC 8305, section 8)."""
_PORTS = {"http": 80, "https": 443}


class ExchangeFailed(Exception):
    """An exchange could not be completed.

    The message may be shown in logs and to clients: it contains no header of the request.

    Attributes:
        kind: ``dns``, ``connect``, ``tls``, ``timeout``, ``invalid`` (not HTTP), ``broken``, ``busy`` or ``exhausted``, for the
            metric's label.
        unanswered: the connection ended before the first byte of an answer.
    """

    def __init__(self, kind: str, text: str, *, unanswered: bool = False) -> None:
        self.kind = kind
        self.unanswered = unanswered
        super().__init__(text)


class ServerAddress(NamedTuple):
    """The address of a server. ``host`` is without brackets, ``name`` the value of the Host header."""

    host: str
    port: int
    tls: bool
    name: str

    @staticmethod
    @cache  # one entry per origin and node
    def of(url: str) -> ServerAddress:
        """The address ``http[s]://host[:port]``, already checked by the configuration or the membership."""
        parts = urlsplit(url)
        host, scheme = parts.hostname or "", parts.scheme.lower()
        port = parts.port or _PORTS[scheme]
        name = f"[{host}]" if ":" in host else host
        return ServerAddress(host, port, scheme == "https", name if port == _PORTS[scheme] else f"{name}:{port}")


class Dialer:
    """Opens connections; ``within`` limits the seconds of an attempt, without name resolution; ``None`` for no limit."""

    def __init__(self, within: float | None) -> None:
        self._within = within
        self._names: TTLCache[tuple[str, int], list[AddrInfoType]] = TTLCache(_NAMES_KEPT, _KEEP_NAME)
        self._looking: SingleFlight[tuple[str, int], list[AddrInfoType]] = SingleFlight()
        self._turn = 0

    async def dial(self, address: ServerAddress, protocol: Callable[[], P]) -> P:
        """Open a connection; returns its protocol after ``connection_made``.

        Raises:
            ExchangeFailed: ``dns``, ``connect``, ``tls`` or ``timeout``.
        """
        infos, loop = await self._resolve(address), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._within):
                dialed = await start_connection(infos, happy_eyeballs_delay=_HEAD_START, interleave=1, loop=loop)
                dialed.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                context, name = (_tls(), address.host) if address.tls else (None, None)
                _, made = await loop.create_connection(protocol, sock=dialed, ssl=context, server_hostname=name)
                return made
        except TimeoutError as error:
            raise ExchangeFailed("timeout", f"connecting took longer than {self._within:g} s") from error
        except ssl.SSLError as error:
            raise ExchangeFailed("tls", f"TLS: {error}") from error
        except (OSError, RuntimeError, MemoryError) as error:  # uvloop raises one of the first two
            raise _refused(error, "connecting", "connect", f"cannot connect: {error}") from error

    async def _resolve(self, address: ServerAddress) -> list[AddrInfoType]:
        """The addresses of a host, starting with a different one each time.

        Raises:
            ExchangeFailed: ``dns``.
        """
        place = address.host, address.port
        infos = self._names.get(place)
        if infos is None:
            infos = await self._looking.result(place, partial(_look_up, *place))
            self._names[place] = infos
        self._turn += 1
        turn = self._turn % len(infos)
        return infos[turn:] + infos[:turn]


async def _look_up(host: str, port: int) -> list[AddrInfoType]:
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        pass
    else:
        where = (host, port, 0, 0) if family is socket.AF_INET6 else (host, port)
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)]
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_ADDRCONFIG
        )
    except (OSError, UnicodeError, RuntimeError, MemoryError) as error:
        raise _refused(error, "resolving a name", "dns", f"cannot resolve {host}: {error}") from error
    if not addresses:
        raise ExchangeFailed("dns", f"{host} has no address")
    return list(addresses)


def _refused(error: BaseException, where: str, kind: str, text: str) -> ExchangeFailed:
    """The failure for an error while opening a connection."""
    wanting = SHORTAGES.record(error, where)
    return ExchangeFailed(EXHAUSTED, f"the gateway is out of {wanting}") if wanting else ExchangeFailed(kind, text)


@cache
def _tls() -> ssl.SSLContext:
    """The system's certificates, or those in SSL_CERT_FILE and SSL_CERT_DIR (ssl.get_default_verify_paths)."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
