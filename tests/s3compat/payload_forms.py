"""Signature, body and checksums of a request, from its header, in words for a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl

from tests.s3compat.road import Head

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
# Signed by few clients, so a gateway that verifies a fixed list of headers would refuse them.
_REMARKABLE = (
    "accept", "accept-encoding", "amz-sdk-invocation-id", "content-encoding", "content-length", "content-md5", "content-type",
    "expect", "x-amz-api-version", "x-amz-checksum-mode", "x-amz-user-agent",
)  # fmt: skip


def forms_of(head: Head) -> Iterator[str]:
    """Everything remarkable about one request, each as ``kind: value``."""
    yield from _signature(head)
    if head.method in ("PUT", "POST"):
        yield from _body(head)
    if head.method in ("GET", "HEAD"):
        yield from _reading(head)


def _signature(head: Head) -> Iterator[str]:
    parameters = dict(parse_qsl(head.target.partition("?")[2], keep_blank_values=True))
    if "X-Amz-Signature" in parameters:
        yield "signature: SigV4 in the query"
    elif "Signature" in parameters:
        yield "signature: SigV2 in the query"
    elif head.get("authorization").startswith("AWS4-HMAC-SHA256"):
        yield "signature: SigV4 in a header"
        signed = re.search(r"SignedHeaders=([^,\s]+)", head.get("authorization"))
        for name in signed[1].split(";") if signed else ():
            if name in _REMARKABLE:
                yield f"signed header: `{name}`"
    if any(value == "" and name in ("versionId", "delimiter", "prefix") for name, value in parameters.items()):
        yield "signed query: an empty value"


def _body(head: Head) -> Iterator[str]:
    told = head.get("x-amz-content-sha256")
    if told and told != _EMPTY:
        yield f"payload: {'hex SHA-256' if _HEX.fullmatch(told) else f'`{told}`'}"
    if trailer := head.get("x-amz-trailer"):
        yield f"checksum: trailer `{trailer}`"
    for name, _value in head.headers:
        if name.startswith("x-amz-checksum-") and name not in ("x-amz-checksum-type", "x-amz-checksum-mode"):
            if name != "x-amz-checksum-algorithm":
                yield f"checksum: header `{name}`"
        elif name == "content-md5":
            yield "checksum: header `content-md5`"
    if head.get("expect"):
        yield "framing: `Expect: 100-continue`"
    if head.get("transfer-encoding"):
        yield "framing: `Transfer-Encoding: chunked`"
    elif not head.get("content-length"):
        yield "framing: a PUT or POST without `Content-Length`"


def _reading(head: Head) -> Iterator[str]:
    if wanted := head.get("range"):
        form = re.sub(r"\d+", "N", wanted)
        yield f"read: `Range: {form}`{' with `If-Match`' if head.get('if-match') else ''}"
