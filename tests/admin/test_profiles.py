"""Profiles: a job's reads through any gateway, recorded, and replayed with the rights of the requester."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.operate.warm.profiles import AT_ONCE, MOST
from rig.gateways import Settings, finish, gateway, start
from rig.mounts import filled, mounted
from rig.origin_faults import Refuse
from rig.processes import descendants
from rig.world import MIB, Origin, content, eventually
from tests.admin.operations_world import ADMIN, Zone, admin, get, post, zone

CREDENTIALS = (
    {"access_key_id": "GWA", "secret_access_key": "gateway-secret-a", "tenant": "a"},
    {"access_key_id": "GWB", "secret_access_key": "gateway-secret-b", "tenant": "a", "allow": ["bucket/*/even*"]},
    {"access_key_id": "GWX", "secret_access_key": "gateway-secret-x", "tenant": "x"},
)
RULES = ({"match": "bucket/unseen/**", "pattern": "off"},)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes that share a catalog."""
    home = tmp_path_factory.mktemp("profiles")
    with zone(home, credentials=CREDENTIALS, rules=RULES, capacity="20MB") as made:
        yield made


def objects(origin: Origin, prefix: str, count: int, size: int = 1000) -> list[str]:
    """Paths of objects at the origin, in an order that is not that of a listing."""
    paths = [f"/bucket/{prefix}{'odd' if number % 2 else 'even'}-{number:03}" for number in range(count)]
    for path in paths:
        origin.put(path, content(size, path))
    return sorted(paths, key=lambda path: path[::-1], reverse=True)


def recording(running: Any, name: str, prefix: str, key: str = "GWA", **wanted: Any) -> Any:
    """A profile that every gateway records from now on."""
    body = {"name": name, "access_key_id": key, "bucket": "bucket", "prefix": prefix, **wanted}
    return post(running, "/profiles", body, 201)


def recorded(running: Any, name: str, reads: int) -> Any:
    """The profile, when it has as many reads."""
    return eventually(
        lambda: get(running, f"/profiles/{name}"), lambda found: found["reads"] >= reads, f"{reads} reads in {name}"
    )


def read_until_recorded(running: Any, paths: list[str], name: str) -> None:
    """Read objects in order; the first again and again, until the gateway has begun to record."""
    first, *others = paths
    eventually(
        lambda: [read(running, first), get(running, f"/profiles/{name}")["reads"]][1], bool, "the recording to begin"
    )
    for path in others:
        read(running, path)


def read(running: Any, path: str, **wanted: Any) -> str:
    """Read an object; how the cache answered."""
    answer = running.client().get_object(Bucket="bucket", Key=path.removeprefix("/bucket/"), **wanted)
    answer["Body"].read()
    status: str = answer["ResponseMetadata"]["HTTPHeaders"]["x-larder-cache"]
    return status


def listed(running: Any, name: str) -> list[str]:
    """The paths that a profile lists, in order."""
    return [f"/bucket/{read['key']}" for read in get(running, f"/profiles/{name}/reads?limit=1000")["items"]]


def forget(running: Any, prefix: str) -> None:
    """Purge a prefix."""
    post(running, "/purge", {"bucket": "bucket", "prefix": prefix})


def unlinked(running: Any, folder: Path) -> list[str]:
    """Files of a folder that are unlinked, but still open in the gateway."""
    found = []
    for pid in (running.process.pid, *descendants(running.process.pid)):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(os.readlink(descriptor))
    return [path for path in found if path.startswith(f"{folder}/") and path.endswith(" (deleted)")]


def warmed(running: Any, name: str, key: str = "GWA", state: str = "done") -> Any:
    """Start a warm-up from a profile and return it once it has reached ``state``."""
    begun = post(running, "/warmups", {"access_key_id": key, "profile": name}, 202)
    return eventually(
        lambda: get(running, f"/warmups/{begun['id']}"), lambda found: found["state"] == state, f"it to be {state}"
    )


def test_what_a_job_read_is_replayed_in_its_order(world: Zone) -> None:
    """Rule: recorded, stopped, purged and replayed, every object that was read is a hit, and is read from the origin once."""
    one = world.nodes[0]
    paths = objects(world.origin, "order/", 30)
    unread = objects(world.origin, "order/later/", 2)
    assert recording(one, "order", "order/")["state"] == "recording"
    read_until_recorded(one, paths, "order")
    recorded(one, "order", 30)
    assert post(one, "/profiles/order/stop")["state"] == "done"
    assert listed(one, "order") == paths
    forget(one, "order/")
    before = {path: world.origin.count("GET", path) for path in paths}
    found = warmed(world.nodes[1], "order")
    assert (found["profile"], found["total"], found["done"], found["failed"]) == ("order", 30, 30, 0)
    assert found["done_bytes"] == found["total_bytes"] == 30_000
    assert {path: world.origin.count("GET", path) - before[path] for path in paths} == dict.fromkeys(paths, 1)
    assert {world.read(number % 2, path) for number, path in enumerate(paths)} == {"HIT"}
    assert sum(world.origin.count("GET", path) for path in unread) == 0
    assert [each["action"] for each in get(one, "/audit?target=order&limit=10")["items"]] == [
        "profiles.stop",
        "profiles.record",
    ]


def test_reads_through_all_gateways_are_one_profile(world: Zone) -> None:
    """Rule: two gateways that a job reads through record one profile; each read is listed once, by time."""
    paths = objects(world.origin, "both/", 20)
    recording(world.nodes[0], "both", "both/")
    read_until_recorded(world.nodes[0], paths[:10], "both")
    recorded(world.nodes[0], "both", 10)
    for path in [paths[3], *paths[10:]]:
        read(world.nodes[1], path)
    recorded(world.nodes[0], "both", 21)
    assert listed(world.nodes[1], "both") == paths


def test_only_the_named_reads_are_recorded(world: Zone) -> None:
    """Rule: reads of another key, outside the prefix, or under a rule with the pattern ``off`` are not recorded."""
    one = world.nodes[0]
    (mine,), (unseen,), (outside,) = (objects(world.origin, name, 1) for name in ("mine/", "unseen/", "outside/"))
    recording(one, "mine", "mine/")
    recording(one, "unseen", "unseen/")
    other = one.client("GWX", "gateway-secret-x")
    other.get_object(Bucket="bucket", Key=objects(world.origin, "mine/others/", 1)[0].removeprefix("/bucket/"))[
        "Body"
    ].read()
    read(one, unseen)
    read(one, outside)
    read_until_recorded(one, [mine], "mine")
    assert listed(one, "mine") == [mine]
    assert get(one, "/profiles/unseen")["reads"] == 0


def test_ranges_of_a_large_object_load_those_blocks_only(tmp_path: Path) -> None:
    """Rule: of an object of which a part was read, a warm-up loads the blocks of that part."""
    block, size, path = 4 * MIB, 12 * MIB, "/bucket/large/object"
    with Origin() as origin, gateway(Settings(origin.endpoint, tmp_path / "cache", extra=ADMIN), tmp_path) as one:
        origin.put(path, content(size, "large"))
        recording(one, "large", "large/")

        def read_a_block() -> int:
            read(one, path, Range=f"bytes={block}-{2 * block - 1}")
            return int(get(one, "/profiles/large")["reads"])

        eventually(read_a_block, bool, "the recording to begin")
        post(one, "/profiles/large/stop")
        (only,) = get(one, "/profiles/large/reads")["items"]
        assert (only["start"], only["stop"], only["size"]) == (block, 2 * block, size)
        forget(one, "large/")
        found = warmed(one, "large")
        assert (found["done"], found["done_bytes"], found["failed"]) == (1, block, 0)
        assert read(one, path, Range=f"bytes={block}-{2 * block - 1}") == "HIT"
        assert "MISS" in read(one, path, Range="bytes=0-99")


def test_rights_are_those_of_who_replays(world: Zone) -> None:
    """Rule: another tenant's profile is unknown; a key of the tenant loads the objects of its allow-list."""
    one = world.nodes[0]
    paths = objects(world.origin, "rights/", 6)
    recording(one, "rights", "rights/")
    read_until_recorded(one, paths, "rights")
    recorded(one, "rights", 6)
    still = admin(one, "POST", "/warmups", {"access_key_id": "GWA", "profile": "rights"})
    assert (still.status, still.code) == (409, "Conflict")
    assert "still being recorded" in still.json["detail"]
    post(one, "/profiles/rights/stop")
    forget(one, "rights/")
    for name, key in (("rights", "GWX"), ("nothing", "GWA")):
        reply = admin(one, "POST", "/warmups", {"access_key_id": key, "profile": name})
        assert (reply.status, reply.code) == (409, "Conflict")
        assert "has no profile" in reply.json["detail"]
    before = sum(world.origin.count("GET", path) for path in paths)
    found = warmed(one, "rights", key="GWB")
    assert (found["done"], found["failed"], found["done_bytes"]) == (6, 3, 3000)
    assert all("allow-list" in each["why"] for each in found["examples"])
    assert sum(world.origin.count("GET", path) for path in paths) - before == 3


def test_what_is_gone_since_is_counted(world: Zone) -> None:
    """Rule: objects that were deleted, or that the origin refuses now, are failures with a reason; the others are loaded."""
    one = world.nodes[0]
    paths = objects(world.origin, "gone/", 8)
    recording(one, "gone", "gone/")
    read_until_recorded(one, paths, "gone")
    recorded(one, "gone", 8)
    post(one, "/profiles/gone/stop")
    forget(one, "gone/")
    world.origin.s3.delete("bucket", paths[2].removeprefix("/bucket/"))
    world.origin.inject(Refuse(path=paths[5], times=10, status=403, code="AccessDenied"))
    found = warmed(one, "gone")
    world.origin.heal()
    assert (found["done"], found["failed"], found["done_bytes"]) == (8, 2, 6000)
    assert sorted(each["key"] for each in found["examples"]) == sorted(
        path.removeprefix("/bucket/") for path in (paths[2], paths[5])
    )
    assert all(each["why"] for each in found["examples"])


def test_rights_that_are_withdrawn_end_the_warm_up(world: Zone) -> None:
    """Rule: a key that is revoked while it replays stops it; a resumed warm-up fails too."""
    one = world.nodes[0]
    paths = objects(world.origin, "revoked/", 10)
    made = post(
        one, "/credentials", {"access_key_id": "GWR", "tenant": "a", "origin": "default", "description": ""}, 201
    )
    assert made["access_key_id"] == "GWR"
    recording(one, "revoked", "revoked/")
    read_until_recorded(one, paths, "revoked")
    recorded(one, "revoked", 10)
    post(one, "/profiles/revoked/stop")
    forget(one, "revoked/")
    hang = world.origin.hang(paths[0])
    begun = post(one, "/warmups", {"access_key_id": "GWR", "profile": "revoked"}, 202)
    hang.gate.arrival.result(60)
    post(one, "/credentials/GWR/revoke")
    post(one, f"/warmups/{begun['id']}/cancel")
    hang.gate.open()
    post(one, f"/warmups/{begun['id']}/resume")
    found = eventually(
        lambda: get(one, f"/warmups/{begun['id']}"), lambda found: found["state"] == "failed", "it to fail"
    )
    assert "revoked" in found["failure"]


def test_a_profile_larger_than_the_cache_is_refused(world: Zone) -> None:
    """Rule: it is refused at once with both sizes, and nothing is loaded."""
    one = world.nodes[0]
    paths = objects(world.origin, "huge/", 40, 1_000_000)
    recording(one, "huge", "huge/")
    read_until_recorded(one, paths, "huge")
    recorded(one, "huge", 40)
    post(one, "/profiles/huge/stop")
    reply = admin(one, "POST", "/warmups", {"access_key_id": "GWA", "profile": "huge"})
    assert (reply.status, reply.code) == (409, "Conflict")
    assert "40.0 MB" in reply.json["detail"]


def test_names_and_numbers_are_bounded(tmp_path: Path) -> None:
    """Rule: a name is used once; so many are recorded at once, and a tenant has so many; deleting one makes room."""
    with (
        Origin() as origin,
        gateway(Settings(origin.endpoint, tmp_path / "cache", credentials=CREDENTIALS, extra=ADMIN), tmp_path) as one,
    ):
        recording(one, "n", "none/")
        twice = admin(one, "POST", "/profiles", {"name": "n", "access_key_id": "GWX", "bucket": "bucket"})
        assert (twice.status, twice.code) == (409, "Conflict")
        for number in range(AT_ONCE - 1):
            recording(one, f"n{number}", "none/", "GWX")
        many = admin(one, "POST", "/profiles", {"name": "more", "access_key_id": "GWA", "bucket": "bucket"})
        assert "at once" in many.json["detail"]
        post(one, "/profiles/n/stop")
        assert admin(one, "POST", "/profiles/n/stop", {}).code == "Conflict"
        for number in range(MOST - 1):
            recording(one, f"a{number}", "none/")
            post(one, f"/profiles/a{number}/stop")
        full = admin(one, "POST", "/profiles", {"name": "more", "access_key_id": "GWA", "bucket": "bucket"})
        assert f"{MOST} profiles" in full.json["detail"]
        page = get(one, "/profiles?limit=3")
        assert [each["name"] for each in page["items"]] == ["a0", "a1", "a10"]
        for path in ("/profiles/nobody", "/profiles/nobody/reads"):
            assert admin(one, "GET", path).status == 404
        assert admin(one, "DELETE", "/profiles/n").status == 204
        assert recording(one, "n", "none/")["reads"] == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "a/b", "access_key_id": "GWA", "bucket": "bucket"}, "name"),
        ({"name": "ok", "access_key_id": "NOBODY", "bucket": "bucket"}, "access_key_id"),
        ({"name": "ok", "access_key_id": "GWA", "bucket": "/"}, "bucket"),
        ({"name": "ok", "access_key_id": "GWA", "bucket": "bucket", "seconds": 0}, "seconds"),
        ({"name": "ok", "access_key_id": "GWA", "bucket": "bucket", "speed": 1}, "speed"),
    ],
)
def test_what_is_wrong_is_named(world: Zone, body: dict[str, object], field: str) -> None:
    """Rule: an invalid request is refused by the field, and nothing is recorded."""
    before = [one["name"] for one in get(world.nodes[0], "/profiles")["items"]]
    reply = admin(world.nodes[0], "POST", "/profiles", body)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert field in reply.json["detail"]
    assert [one["name"] for one in get(world.nodes[0], "/profiles")["items"]] == before


def test_a_recording_goes_on_after_a_kill(tmp_path: Path) -> None:
    """Rule: after a kill or a stop, a gateway continues a recording; saved reads stay, and none is duplicated."""
    with Origin() as origin:
        paths = objects(origin, "kill/", 12)
        # One worker: what another has read, but not passed on when both end, is lost, as docs/streams.md says.
        settings = Settings(origin.endpoint, tmp_path / "cache", extra=ADMIN)
        running = start(settings, tmp_path)
        recording(running, "kill", "kill/")
        read_until_recorded(running, paths[:4], "kill")
        recorded(running, "kill", 4)
        running.kill()
        finish(running)
        running = start(settings, tmp_path)
        for path in paths[2:8]:
            read(running, path)
        recorded(running, "kill", 4 + 6)
        for path in paths[8:]:
            read(running, path)
        finish(running)  # SIGTERM: what was read in the last second is saved
        running = start(settings, tmp_path)
        try:
            assert listed(running, "kill") == paths
            post(running, "/profiles/kill/stop")
            forget(running, "kill/")
            assert warmed(running, "kill")["done"] == len(paths)
            assert {read(running, path) for path in paths} == {"HIT"}
        finally:
            finish(running)


def test_a_full_disk_costs_no_read(tmp_path: Path) -> None:
    """Rule: while the disk of cache and catalog is full, reads are served; once there is space, recording continues."""
    with Origin() as origin, mounted(tmp_path / "small", "size=20m") as small:
        paths = objects(origin, "full/", 12)
        settings = Settings(origin.endpoint, small / "cache", extra=ADMIN)
        with gateway(settings, tmp_path / "home") as running:
            recording(running, "full", "full/")
            read_until_recorded(running, paths[:4], "full")
            with filled(small):
                for path in paths:
                    read(running, path)
                assert get(running, "/profiles/full")["state"] == "recording"

            def read_again() -> int:
                for path in paths:
                    read(running, path)
                return int(get(running, "/profiles/full")["reads"])

            eventually(read_again, lambda reads: reads == len(paths), "the recording of all of them")
            assert sorted(listed(running, "full")) == sorted(paths)
            post(running, "/profiles/full/stop")
            forget(running, "full/")
            # Files that are closed later would give their space back to the full disk.
            eventually(lambda: unlinked(running, small), lambda files: not files, "the forgotten files to be closed")
            with filled(small):
                refused = admin(running, "POST", "/warmups", {"access_key_id": "GWA", "profile": "full"})
                assert (refused.status, refused.code) == (503, "ServiceUnavailable")


def test_without_observation_nothing_is_recorded(tmp_path: Path) -> None:
    """Rule: where ``streams.enabled`` is false, recording is refused with the setting's name."""
    with Origin() as origin:
        settings = Settings(origin.endpoint, tmp_path / "cache", extra=f"{ADMIN}[streams]\nenabled = false\n")
        with gateway(settings, tmp_path) as running:
            reply = admin(running, "POST", "/profiles", {"name": "n", "access_key_id": "GWA", "bucket": "bucket"})
            assert (reply.status, reply.code) == (409, "Conflict")
            assert "streams.enabled" in reply.json["detail"]
