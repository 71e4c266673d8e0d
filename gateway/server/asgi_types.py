"""The types of ASGI (https://asgi.readthedocs.io), and of this server's two extensions of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from gateway.server.files import FileSpan

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]
SendFiles = Callable[[int, bytes, Sequence[FileSpan], bytes | memoryview | None], Awaitable[None] | None]
"""Sends a whole response of files, or of bytes (status, header lines, spans, the bytes: see ``Cycle.send_files``); returns the
remaining work to await, ``None`` if all is sent."""
Begin = Callable[[Scope, Receive, Send, SendFiles], Awaitable[None] | None]
"""Begins to answer a request; see ``gateway.edge.asgi.Edge.begin``."""
