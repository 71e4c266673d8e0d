"""Ranges that are sent again (``gateway/api/s3/compiled.py``), and the files that they come from."""

from __future__ import annotations

import os
from pathlib import Path

from rig.clients import Client
from rig.gateways import Settings, gateway
from rig.processes import wait_until
from rig.world import MIB, Origin, content

BODY = content(3 * MIB, "large")


def test_a_removed_objects_files_are_closed(origin: Origin, tmp_path: Path) -> None:
    """Rule: an object of which ranges were sent again and again leaves no open file behind, which would keep its space."""
    origin.put("/bucket/large", BODY)
    settings = Settings(origin.endpoint, tmp_path / "cache", rules=({"match": "**", "freshness": "1h", "grant": "1h"},))
    with gateway(settings, tmp_path) as running, Client(running.endpoint) as client:
        assert client.ask("GET", "/bucket/large").body == BODY
        for start in range(0, 40 * 70_000, 70_000):
            answer = client.ask("GET", "/bucket/large", {"Range": f"bytes={start}-{start + 999}"})
            assert answer.body == BODY[start : start + 1000]
        descriptors = Path(f"/proc/{running.process.pid}/fd")

        def blobs(end: str) -> list[str]:
            files = [os.readlink(each) for each in descriptors.iterdir()]
            return [file for file in files if "/blobs/" in file and file.endswith(end)]

        assert blobs("")
        assert client.ask("DELETE", "/bucket/large").status == 204
        wait_until(lambda: not blobs("(deleted)") and not blobs(""), 60, "the end of the open files")
