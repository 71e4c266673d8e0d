"""Small ASGI applications: what servers are started with, here and in processes of their own, which need no pytest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.server.asgi_types import Message, Receive, Scope, Send

Handler = Callable[[Scope, Receive, Send], Any]


def with_lifespan(handler: Handler) -> Handler:
    """An application whose HTTP side is the handler; it has the handler's ``begin``, if there is one."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        await handler(scope, receive, send)

    if (begin := getattr(handler, "begin", None)) is not None:
        application.begin = begin  # type: ignore[attr-defined]
    return application


def head(length: int, *extra: tuple[bytes, bytes], status: int = 200) -> Message:
    """The start of a response with a content-length."""
    return {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % length), *extra]}


def body(data: bytes, more_body: bool = False) -> Message:
    """A piece of a response body."""
    return {"type": "http.response.body", "body": data, "more_body": more_body}
