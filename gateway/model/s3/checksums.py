"""The checksums that S3 clients send: Content-MD5 and x-amz-checksum-*, computed while the bytes pass.

Unknown algorithms are not an error: the header goes to the origin, which checks the algorithms that it supports. Composite values
of multipart uploads ("...-12") are checksums of checksums and cannot be computed from one body, so they pass too.

Source: "Checking object integrity in Amazon S3" in the Amazon S3 user guide.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from typing import Protocol

from awscrt import checksums as crt

from gateway.model.errors import S3Error

CONTENT_MD5 = "content-md5"
PREFIX = "x-amz-checksum-"


class Checksum(Protocol):
    """A running checksum."""

    def update(self, data: bytes, /) -> object:
        """Add the next bytes."""

    def digest(self) -> bytes:
        """The checksum of all bytes added so far, big-endian."""


class _Crc:
    def __init__(self, compute: Callable[[bytes, int], int], width: int) -> None:
        self._compute = compute
        self._width = width
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = self._compute(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._width, "big")


_FACTORIES: Mapping[str, tuple[Callable[[], Checksum], int]] = {
    CONTENT_MD5: (hashlib.md5, 16),
    PREFIX + "crc32": (lambda: _Crc(zlib.crc32, 4), 4),
    PREFIX + "crc32c": (lambda: _Crc(crt.crc32c, 4), 4),
    PREFIX + "crc64nvme": (lambda: _Crc(crt.crc64nvme, 8), 8),
    PREFIX + "sha1": (hashlib.sha1, 20),
    PREFIX + "sha256": (hashlib.sha256, 32),
}

KNOWN = frozenset(_FACTORIES)
"""Header names, in lower case, whose value can be verified here."""


def start(name: str) -> Checksum:
    """A new checksum for a header name of ``KNOWN``."""
    return _FACTORIES[name][0]()


def encode(checksum: Checksum) -> str:
    """The base64 form used in header values."""
    return b64encode(checksum.digest()).decode()


def is_composite(value: str) -> bool:
    """Whether a value is a multipart object's checksum of checksums, such as ``n2alat0A==-12``."""
    head, dash, parts = value.rpartition("-")
    return bool(head) and bool(dash) and parts.isdigit()


def check_form(name: str, value: str) -> None:
    """Refuse a value that has the wrong form.

    Raises:
        S3Error: InvalidDigest for Content-MD5, InvalidRequest for x-amz-checksum-*.
    """
    try:
        fits = len(b64decode(value, validate=True)) == _FACTORIES[name][1]
    except (Base64Error, ValueError):
        fits = False
    if not fits:
        if name == CONTENT_MD5:
            raise S3Error("InvalidDigest", extra={"Content-MD5": value})
        raise S3Error("InvalidRequest", f"Value for {name} header is invalid.")


def check_value(name: str, claimed: str, checksum: Checksum) -> None:
    """Compare a header's value with the computed checksum.

    Raises:
        S3Error: BadDigest if they differ.
    """
    if not hmac.compare_digest(b64decode(claimed), checksum.digest()):
        label = "Content-MD5" if name == CONTENT_MD5 else name.removeprefix(PREFIX).upper()
        raise S3Error(
            "BadDigest",
            f"The {label} you specified did not match the calculated checksum.",
            extra={"ExpectedDigest": claimed, "CalculatedDigest": encode(checksum)},
        )
