"""Answers that the server gives by itself, when no application can: unreadable requests, overload, faults of ours."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any
from xml.sax.saxutils import escape

from gateway.model.errors import S3_CODES
from gateway.server.head import STATUS_LINES

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
RETRY_AFTER = b"1"
"""Seconds that a client turned away by overload should wait; SDKs back off further by themselves."""


def _document(code: str, message: str) -> tuple[bytes, bytes]:
    request_id = secrets.token_hex(8).upper()
    text = escape(message or S3_CODES[code][1])
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{text}'
        f"</Message><RequestId>{request_id}</RequestId></Error>"
    )
    return request_id.encode(), body.encode()


def refusal(code: str, message: str = "") -> bytes:
    """A whole HTTP response that refuses a request which could not even be read; the connection ends after it.

    Args:
        code: a key of ``S3_CODES``.
        message: what was wrong; the code's standard text when empty.
    """
    request_id, body = _document(code, message)
    return (
        STATUS_LINES[S3_CODES[code][0]]
        + b"content-type: application/xml\r\nx-amz-request-id: " + request_id
        + b"\r\ndate: " + formatdate(usegmt=True).encode()
        + b"\r\ncontent-length: " + str(len(body)).encode() + b"\r\nconnection: close\r\n\r\n" + body
    )  # fmt: skip


async def _answer(send: Send, code: str, *extra: tuple[bytes, bytes]) -> None:
    request_id, body = _document(code, "")
    headers = [
        (b"content-type", b"application/xml"),
        (b"x-amz-request-id", request_id),
        (b"date", formatdate(usegmt=True).encode()),
        (b"content-length", str(len(body)).encode()),
        *extra,
    ]
    await send({"type": "http.response.start", "status": S3_CODES[code][0], "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def slow_down(scope: Scope, receive: Receive, send: Send) -> None:
    """The application that answers while too many requests are in flight: 503 SlowDown with Retry-After."""
    await _answer(send, "SlowDown", (b"retry-after", RETRY_AFTER))


async def internal_error(send: Send) -> None:
    """Answer 500 InternalError and end the connection: the application failed before it began to answer."""
    await _answer(send, "InternalError", (b"connection", b"close"))
