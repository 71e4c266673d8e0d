"""The origin's answer: its head as it came, its body as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NoReturn

from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientResponseError,
    ClientSSLError,
)

from gateway.metrics import ORIGIN_BYTES, ORIGIN_FAILURES
from gateway.model.errors import OriginUnavailable
from gateway.model.objects import Header
from gateway.origin.upload import Upload


class ResponseTooLarge(OriginUnavailable):
    """A body that was to be read whole is larger than it can rightly be."""


class OriginResponse:
    """An answer whose head is complete; end it with ``release`` or ``abort``.

    ``headers`` keeps the origin's order, spelling and repetitions; each character of a value is one byte.
    """

    __slots__ = ("_ended", "_response", "_upload", "headers", "status")

    def __init__(self, response: ClientResponse, upload: Upload | None, ended: Callable[[], None]) -> None:
        self._response = response
        self._upload = upload
        self._ended: Callable[[], None] | None = ended
        self.status: int = response.status
        self.headers: list[Header] = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers
        ]

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever its spelling, or ``None``."""
        wanted = name.lower()
        for candidate, value in self.headers:
            if candidate.lower() == wanted:
                return value
        return None

    async def next_chunk(self) -> bytes:
        """Whatever has arrived since the last call, waiting for at least one byte; ``b""`` at the end of the body.

        Raises:
            OriginUnavailable: the body ended before its Content-Length, the connection broke, or nothing came for the
                origin's ``read_timeout``.
        """
        content = self._response.content
        try:
            # What arrived before the connection broke comes first; aiohttp's own reads raise without handing it out.
            chunk = content._read_nowait(-1) if content.exception() is not None else b""
            chunk = chunk or await content.readany()
            # An empty buffer that is not the end: the parser delivered an empty piece.
            while not chunk and not content.at_eof():
                chunk = await content.readany()
        except (ClientError, OSError) as error:
            self._broken(error)
        ORIGIN_BYTES.inc(len(chunk))
        return chunk

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece as it arrives. Raises what ``next_chunk`` raises."""
        while chunk := await self.next_chunk():
            yield chunk

    async def read(self, limit: int) -> bytes:
        """The whole body, and the connection released.

        Raises:
            ResponseTooLarge: there are more than ``limit`` bytes; the connection is closed.
            OriginUnavailable: as ``next_chunk``.
        """
        pieces: list[bytes] = []
        size = 0
        while chunk := await self.next_chunk():
            pieces.append(chunk)
            size += len(chunk)
            if size > limit:
                self.abort()
                raise ResponseTooLarge(f"the origin's answer is larger than {limit} bytes")
        self.release()
        return b"".join(pieces)

    def release(self) -> None:
        """Give the connection back for the next request.

        It is closed instead when there is more body to come, or when the origin answered before it had read the request.
        """
        if self._response.content.at_eof() and (self._upload is None or self._upload.finished):
            self._response.release()
            self._end()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection: nobody wants the rest of the body. Harmless after ``release``."""
        self._response.close()
        self._end()

    def _end(self) -> None:
        if self._ended is not None:
            self._ended()
            self._ended = None

    def _broken(self, error: Exception) -> NoReturn:
        self.abort()
        ORIGIN_FAILURES.labels(kind_of(error)).inc()
        raise OriginUnavailable(f"the origin broke off its answer: {described(error)}") from error


def described(error: Exception) -> str:
    """A failure of a connection in words for clients and logs.

    Never its ``repr``: that of aiohttp's response errors contains the request's headers, signature and token included.
    """
    text = "not valid HTTP" if isinstance(error, ClientResponseError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def kind_of(error: Exception) -> str:
    """A failure of a connection in one word, for the metric's label."""
    if isinstance(error, TimeoutError):
        return "timeout"
    kinds = {
        ClientConnectorDNSError: "dns",
        ClientSSLError: "tls",
        ClientConnectorError: "connect",
        ClientResponseError: "invalid",
    }
    return next((kind for type_, kind in kinds.items() if isinstance(error, type_)), "broken")
