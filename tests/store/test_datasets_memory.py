"""Memory of a worker per open dataset, measured with one million items and extrapolated to ten million."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.store.datasets.conversion import Grant, Limits, convert
from rig.digests import write_many

COUNT = 1_000_000
TOUCH = """
import json, re, sys
from pathlib import Path
import numpy as np
from gateway.store.datasets.content import Content
from gateway.store.datasets.locations import open_locations

def resident():
    return 1024 * int(re.search(r"Rss: +(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1])

content, locations = Content(Path(sys.argv[1]), 1), open_locations(Path(sys.argv[2]))
opened = resident()
order = np.random.default_rng(0).permutation(content.items)
some = order[:20_000]
for index in some.tolist():
    assert content.indices_of(content.digest(index)).tolist() == [index]
    assert locations.of(index).key.endswith(f"_{index}.JPEG")
content.states.flags[order] = 2
content.states.crc32[order] = order
content.states.stamp[order] = order
touched = int(content.digests[order].sum()) + int(content.lengths[order].sum()) + content.states.resident
index = content.indices_of.__self__
for array in (index.prefixes, index.order):
    touched += int(array.max())
del order, some  # the measurement's own
print(json.dumps({"opened": opened, "touched": resident(), "seen": touched}))
"""


@pytest.mark.timeout(600)
def test_memory_of_a_million_items(tmp_path: Path) -> None:
    """Rule: an open dataset costs no memory; all of it touched at random costs under 1 GB for ten million items."""
    out = tmp_path / "out"
    out.mkdir()
    done = asyncio.run(convert(write_many(tmp_path / "f", COUNT), out, Limits(), Grant(), (tmp_path / "turn",)))
    folder = (out / "content").rename(tmp_path / done.tag)
    files = sum(path.stat().st_size for path in folder.iterdir())
    assert files <= 61 * COUNT + 256
    command = [sys.executable, "-c", TOUCH, str(folder), str(out / "locations")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    bare = subprocess.run(
        [sys.executable, "-c", TOUCH.split("content, locations =")[0] + "print(resident())"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    base = int(bare.stdout)
    assert found["opened"] - base < 4 * 1024**2
    assert 10 * (found["touched"] - base) < 1000**3
