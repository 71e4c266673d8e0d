"""Quota of a tenant's registrations, and content names, over HTTP."""

from __future__ import annotations

from pathlib import Path

from rig.digests import Row, rows_of, write
from rig.gateways import Settings, gateway
from rig.origin import FakeOrigin
from rig.v1 import ask, register


def file_of(tmp_path: Path, rows: list[Row]) -> bytes:
    """The bytes of a digest file."""
    return write(tmp_path / "file.parquet", rows).read_bytes()


def test_a_name_by_content(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: on request the name holds the dataset's id, so that a file that was rebuilt displaces nothing; another dataset cannot
    have that name."""
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path / "home") as running:
        old, new = file_of(tmp_path, rows_of(3, seed=1)), file_of(tmp_path, rows_of(4, seed=2))
        replies = [register(running, "train", file, query="?by_content=true") for file in (old, new, old)]
        assert [reply.status for reply in replies] == [201, 201, 200]
        names = [reply.json["name"] for reply in replies]
        assert names == [f"train-{reply.json['id'][:16]}" for reply in replies]
        assert [ask(running, "GET", f"/v1/datasets/{each}").json["items"] for each in names[:2]] == [3, 4]
        refused = register(running, names[0], new)
        assert (refused.status, refused.code) == (409, "Conflict")


def test_a_quota_names_its_setting(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: a registration beyond the tenant's quota is refused, naming the setting and a remedy, also after a restart."""
    extra = "[datasets]\ntenant_registrations = 1\ntenant_items = 5\n"
    settings = Settings(origin.endpoint, tmp_path / "cache", extra=extra)
    with gateway(settings, tmp_path / "first", isolated=True) as first:
        too_many = register(first, "many", file_of(tmp_path, rows_of(6)))
        assert (too_many.status, too_many.code, too_many.json["limit"]) == (413, "TooLarge", "datasets.tenant_items")
        assert register(first, "one", file_of(tmp_path, rows_of(5))).status == 201
    with gateway(settings, tmp_path / "second", isolated=True) as second:
        reply = register(second, "two", file_of(tmp_path, rows_of(1)))
        assert (reply.status, reply.json["limit"]) == (413, "datasets.tenant_registrations")
        assert "Remove registrations that are no longer used" in reply.json["detail"]
        assert ask(second, "DELETE", "/v1/datasets/one").status == 204
        assert register(second, "two", file_of(tmp_path, rows_of(1))).status == 201
