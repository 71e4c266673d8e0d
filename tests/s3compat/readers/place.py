"""What the scripts of readers share: where to write and read, and numbers and bytes that tell their version.

Standard library only: each script runs in an environment of its own. The harness sets the variables of AWS, and passes the step,
the version, the bucket and the prefix as arguments; HOME is an empty folder, so nothing that a client caches itself is left.
"""

import os
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ENDPOINT = os.environ.get("AWS_ENDPOINT_URL", "")
KEY = os.environ.get("AWS_ACCESS_KEY_ID", "")
SECRET = os.environ.get("AWS_SECRET_ACCESS_KEY", "")
REGION = "us-east-1"
STEP, VERSION, BUCKET, PREFIX = (*sys.argv[1:], "", "", "", "")[:4]
URL = f"s3://{BUCKET}/{PREFIX}"
SCRATCH = Path.home()
_VERSIONS = range(1, 10)


def numbers(version: int, count: int) -> list[int]:
    """Numbers that all differ, and all tell the version."""
    return [number * 10 + version for number in range(count)]


def version_of_numbers(values: Iterable[int], count: int) -> int:
    """The version of numbers that were read; fails if they are of two, too few, or others."""
    read = [int(value) for value in values]
    version = read[0] % 10 if read else 0
    assert read == numbers(version, count), f"{len(read)} numbers of versions {sorted({value % 10 for value in read})}"
    return version


def content(version: int, size: int) -> bytes:
    """Bytes of a version, the same each time."""
    return random.Random(version).randbytes(size)


def version_of_content(data: bytes, size: int) -> int:
    """The version of bytes that were read; fails if they are of two, too few, or others."""
    for version in _VERSIONS:
        if data == content(version, size):
            return version
    raise AssertionError(f"{len(data)} bytes of no version")


def run(write: Callable[[int], None], read: Callable[[], int]) -> None:
    """Do the step that the harness asks for; the last line of a read is the version."""
    if STEP == "write":
        write(int(VERSION))
    else:
        print(f"\nversion {read()}")
