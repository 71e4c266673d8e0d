"""Objects that are read right after they were written, under ``warm_on_write``."""

from __future__ import annotations

from pathlib import Path

from rig.clients import Client
from rig.gateways import Settings, gateway
from rig.world import MIB, Origin, content


def test_what_was_written_is_read_from_the_cache_by_every_worker(origin: Origin, tmp_path: Path) -> None:
    """Rule: no read that begins after the answer to a write reads the store, whichever worker gets it, in whatever form."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2, rules=({"match": "**", "warm_on_write": True},))
    with gateway(settings, tmp_path) as running, Client(running.endpoint) as writer:
        store = running.client()
        for number, size in enumerate([10, 300_000, 2 * MIB + 7] * 4):
            path = f"/written/{number}"
            body = content(size, path)
            if number == 0:
                origin.put("/written/bucket", b"")
            if number % 2:
                store.put_object(Bucket="written", Key=str(number), Body=body, ChecksumAlgorithm="SHA256")
            else:
                assert writer.put(path, body).status == 200
            for _ in range(3):
                with Client(running.endpoint) as reader:
                    got = reader.get(path)
                assert (got.body, got.cache) == (body, "HIT")
        assert running.metric("larder_fills_total", event="uploaded") == 12
    assert origin.count("GET", "/written/") == 0
