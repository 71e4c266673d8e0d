"""S3's error document, and the server's own answers without an application: invalid requests, overload, internal errors."""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import Mapping
from email.utils import formatdate
from hashlib import sha256
from socket import gethostname
from xml.sax.saxutils import escape

from gateway.model.errors import S3_CODES, sentence
from gateway.server.asgi_types import Receive, Scope, Send
from gateway.server.head import STATUS_LINES

RETRY_AFTER = b"1"
"""Seconds that a client refused because of overload should wait; SDKs back off further by themselves."""


HOST_ID = b64encode(sha256(gethostname().encode()).digest()).decode()
"""Identifies the machines of a fleet in error documents, without naming them."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def error_document(code: str, message: str, request_id: str, details: Mapping[str, str]) -> bytes:
    """The XML document of an error (Amazon S3 API reference, "REST error responses").

    Args:
        code: a key of ``S3_CODES``.
        message: a readable sentence.
        request_id: that of the answer's ``x-amz-request-id``.
        details: further elements, between message and request id.
    """
    elements = {"Code": code, "Message": message, **details, "RequestId": request_id, "HostId": HOST_ID}
    return xml_document("Error", elements)


def xml_document(root: str, elements: Mapping[str, str]) -> bytes:
    """A document with text elements; characters that XML does not allow are replaced."""
    inner = "".join(f"<{name}>{_text(value)}</{name}>" for name, value in elements.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}>{inner}</{root}>'.encode()


def _text(value: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", value))


def _document(code: str, explain: str) -> tuple[bytes, bytes]:
    request_id = secrets.token_hex(8).upper()
    return request_id.encode(), error_document(code, sentence(code, explain), request_id, {})


def refusal(code: str, explain: str = "") -> bytes:
    """A complete HTTP response that refuses an unreadable request; the connection ends after it.

    Args:
        code: a key of ``S3_CODES``.
        explain: details to add to the code's sentence.
    """
    request_id, body = _document(code, explain)
    return (
        STATUS_LINES[S3_CODES[code][0]]
        + b"content-type: application/xml\r\nx-amz-request-id: " + request_id + b"\r\nx-amz-id-2: " + HOST_ID.encode()
        + b"\r\ndate: " + formatdate(usegmt=True).encode()
        + b"\r\ncontent-length: " + str(len(body)).encode() + b"\r\nconnection: close\r\n\r\n" + body
    )  # fmt: skip


async def _answer(send: Send, code: str, *extra: tuple[bytes, bytes]) -> None:
    request_id, body = _document(code, "")
    headers = [
        (b"content-type", b"application/xml"),
        (b"x-amz-request-id", request_id),
        (b"x-amz-id-2", HOST_ID.encode()),
        (b"date", formatdate(usegmt=True).encode()),
        (b"content-length", str(len(body)).encode()),
        *extra,
    ]
    await send({"type": "http.response.start", "status": S3_CODES[code][0], "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def slow_down(scope: Scope, receive: Receive, send: Send) -> None:
    """The application that answers under overload: 503 SlowDown with Retry-After."""
    await _answer(send, "SlowDown", (b"retry-after", RETRY_AFTER))


async def internal_error(send: Send, code: str = "InternalError") -> None:
    """End the connection with an error, usually 500 InternalError: the application failed before it began to answer."""
    await _answer(send, code, (b"connection", b"close"))
