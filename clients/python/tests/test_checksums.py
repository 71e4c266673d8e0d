"""The CRC of batches equals zlib's in every implementation."""

import subprocess
import sys
import zlib

import pytest

from larder.base.checksums import crc32

ALONE = "import sys; sys.modules['isal'] = None; from larder.base.checksums import crc32; import zlib; assert crc32 is zlib.crc32"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1 << 17])
def test_it_is_that_of_zlib(size):
    """Values are zlib's, also when they go on from an earlier one, of any buffer."""
    data = bytes(range(256)) * (size // 256 + 1)
    view = memoryview(data)[:size]
    assert crc32(view) == zlib.crc32(view)
    assert crc32(view, crc32(b"before")) == zlib.crc32(b"before" + data[:size])


def test_without_the_extra_it_is_zlibs_own():
    """Without the extra, checksums need only the standard library."""
    subprocess.run([sys.executable, "-c", ALONE], check=True)
