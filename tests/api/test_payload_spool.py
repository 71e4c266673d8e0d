"""The spool: what happens when its disk fails in the middle of an upload."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

from gateway.api.s3.spool import MEMORY, Spool, SpoolPlace


async def test_small_bodies_stay_in_memory(tmp_path: Path) -> None:
    """Up to a mebibyte no file is opened, so the directory need not even exist."""
    spool = Spool(SpoolPlace(tmp_path / "gone"))
    await spool.write(b"x" * MEMORY)
    assert b"".join([piece async for piece in spool.pieces()]) == b"x" * MEMORY


async def test_disk_that_fails_halfway(tmp_path: Path) -> None:
    """When the spool disk fails, the bytes already written move to the system's temporary directory."""
    spool = Spool(SpoolPlace(tmp_path))
    await spool.write(b"a" * (MEMORY + 1))
    first = spool._file
    assert first is not None
    # The same file, but every further write to it fails.
    with first:
        spool._file = FileIO(f"/proc/self/fd/{first.fileno()}")
    await spool.write(b"b" * (MEMORY + 1))
    await spool.write(b"c")
    pieces = [piece async for piece in spool.pieces()]
    assert b"".join(pieces) == b"a" * (MEMORY + 1) + b"b" * (MEMORY + 1) + b"c"
    assert max(map(len, pieces)) <= MEMORY
    spool.close()
