"""Checksums: the check value of each algorithm, and refusals."""

from __future__ import annotations

import pytest

from gateway.model.errors import S3Error
from gateway.model.s3 import checksums

VALUES = {
    # Of "123456789": the check values of the CRC catalogue, RFC 1321, FIPS 180.
    "x-amz-checksum-crc32": "y/Q5Jg==",
    "x-amz-checksum-crc32c": "4waSgw==",
    "x-amz-checksum-crc64nvme": "rosUhgp5mIg=",
    "x-amz-checksum-sha1": "98O8HYCOBHMq32eZZczDTKeuNEE=",
    "x-amz-checksum-sha256": "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
    "content-md5": "JfnnlDI7RTiF9RgfG2JNCw==",
}


def test_every_known_algorithm_is_tested() -> None:
    """The table of this test covers every algorithm there is."""
    assert set(VALUES) == checksums.KNOWN


@pytest.mark.parametrize("name", list(VALUES))
def test_check_values(name: str) -> None:
    """Each algorithm gives its published check value, for any split into pieces."""
    checksum = checksums.start(name)
    for piece in (b"12", b"", b"34567", b"89"):
        checksum.update(piece)
    assert checksums.encode(checksum) == VALUES[name]
    checksums.check_form(name, VALUES[name])
    checksums.check_value(name, VALUES[name], checksum)


@pytest.mark.parametrize("name", list(VALUES))
def test_difference_is_refused(name: str) -> None:
    """Bytes that differ from the declared checksum get BadDigest."""
    checksum = checksums.start(name)
    checksum.update(b"12345678")
    with pytest.raises(S3Error) as refused:
        checksums.check_value(name, VALUES[name], checksum)
    assert refused.value.code == "BadDigest"


@pytest.mark.parametrize("value", ["", "AAAA", "not base64!", "y/Q5Jg", "y/Q5Jg==-", "\u00fc"])
def test_impossible_values(value: str) -> None:
    """A value no CRC32 can have is refused before any body is read."""
    with pytest.raises(S3Error) as refused:
        checksums.check_form("x-amz-checksum-crc32", value)
    assert refused.value.code == "InvalidRequest"


def test_impossible_md5() -> None:
    """A Content-MD5 of the wrong length is InvalidDigest."""
    with pytest.raises(S3Error) as refused:
        checksums.check_form("content-md5", "AAAA")
    assert refused.value.code == "InvalidDigest"


@pytest.mark.parametrize(
    ("value", "composite"),
    [("n2alat0A==-12", True), ("y/Q5Jg==", False), ("-3", False), ("y/Q5Jg==-", False), ("a-b", False)],
)
def test_composite_values(value: str, composite: bool) -> None:
    """ "-N" at the end marks the checksum of a multipart object."""
    assert checksums.is_composite(value) is composite
