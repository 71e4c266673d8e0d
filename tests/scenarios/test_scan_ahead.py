"""An unmodified client scans a prefix: its next reads are loaded ahead, and the origin gets no other requests."""

from __future__ import annotations

from pathlib import Path

from rig.gateways import Settings, gateway
from rig.processes import wait_until
from rig.world import SOON, Origin

BUCKET = "lake"
COUNT = 400


def test_a_scan_is_loaded_ahead(origin: Origin, tmp_path: Path) -> None:
    """Rule: once the scan is recognised, its next objects are loaded; those bytes are used, and no object is read twice."""
    names = [f"scan/{number:04}" for number in range(COUNT)]
    for name in names:
        origin.put(f"/{BUCKET}/{name}", name.encode() * 100)
    with gateway(Settings(origin.endpoint, tmp_path / "cache", workers=2), tmp_path) as running:
        client = running.client(max_pool_connections=1)

        def read(name: str) -> None:
            assert client.get_object(Bucket=BUCKET, Key=name)["Body"].read() == name.encode() * 100

        for name in names[:200]:
            read(name)
        wait_until(lambda: origin.count("GET", f"/{BUCKET}/{names[203]}") == 1, SOON, "loads ahead of the reader")
        for name in names[200:210]:
            read(name)
        wait_until(lambda: running.metric("larder_stream_prefetched_bytes_total", result="used") > 0, SOON, "their use")
    gets = [seen.raw_path for seen in origin.s3.seen if seen.method == "GET" and "list-type" not in seen.query]
    assert len(gets) == len(set(gets))
    assert max(gets) < f"/{BUCKET}/scan/0300"
