"""The spool: what happens when its disk fails in the middle of an upload."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import pytest

from gateway.api.s3.spool import MEMORY, Spool, SpoolPlace
from gateway.model.errors import S3Error
from gateway.model.holders import HOLDER
from gateway.policies.shares import Shares
from gateway.server.received import BODIES


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


async def test_spools_hold_no_more_than_their_callers_share(tmp_path: Path) -> None:
    """Rule: a caller beyond its share of the spool is refused SlowDown; a closed spool gives back what it held."""
    room, memory = Shares(8 * MEMORY), BODIES.used
    place = SpoolPlace(tmp_path, room=room)
    HOLDER.set("vision")
    spools = [Spool(place) for _ in range(3)]
    for number in range(6):
        await spools[number % 3].write(b"a" * MEMORY)
    with pytest.raises(S3Error, match="SlowDown"):
        await spools[0].write(b"a" * MEMORY)
    assert room.held("vision") == 6 * MEMORY
    HOLDER.set("speech")
    other = Spool(place)
    await other.write(b"b" * MEMORY)
    for spool in (*spools, other):
        spool.close()
    assert (room.used, BODIES.used) == (0, memory)
