"""Datasets, jobs and plan as operators see and change them, with real gateways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.batches import Stock, bytes_of, stock
from rig.v1 import ask
from rig.world import eventually
from tests.admin.operations_world import Zone, admin, get, zone

LASTING = '[manager]\njob_expire = "10m"\n'
"""No rank sends heartbeats here, so jobs must not expire during the tests."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes."""
    with zone(tmp_path_factory.mktemp("datasets"), extra=LASTING) as made:
        yield made


@pytest.fixture(scope="module")
def used(world: Zone, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A dataset with a job."""
    made = stock(world.origin.s3, tmp_path_factory.mktemp("files"), "used", bytes_of(60, 500, "used"))
    made.register(world.nodes[0], "auto")
    join(world, made, "trainer")
    return made


def join(world: Zone, made: Stock, job: str) -> None:
    """Register a job."""
    body = json.dumps({"job": job, "dataset": made.name, "gpus": 4, "batch_size": 8, "caching": "on"}).encode()
    reply = ask(world.nodes[0], "POST", "/v1/jobs", body)
    assert reply.status in (200, 201), reply.body


def shown(world: Zone, made: Stock, number: int = 0) -> dict[str, object]:
    """A dataset, as a gateway shows it."""
    found: dict[str, object] = get(world.nodes[number], f"/datasets/{made.id[:12]}")
    return found


def test_a_dataset_is_shown_with_its_plan_everywhere(world: Zone, used: Stock) -> None:
    """Rule: each gateway lists a dataset that was registered at one, with size, names, mode, reason and jobs."""
    for number, node in enumerate(world.nodes):
        listed = eventually(
            lambda node=node: [each for each in get(node, "/datasets")["items"] if each["id"] == used.id[:12]],
            lambda found: bool(found) and found[0]["why"] == "benefit",
            "the dataset to be planned",
        )
        assert (listed[0]["items"], listed[0]["bytes"]) == (60, sum(map(len, used.bodies)))
        assert (listed[0]["names"], listed[0]["caching"]) == (["used"], "full")
        one = shown(world, used, number)
        assert one["full_id"] == used.id
        assert one["registered"] == [{"tenant": "a", "name": "used", "listing": "forward"}]
        assert [job["job"] for job in one["jobs"]] == ["trainer"]
        plan = get(node, "/plan")
        assert plan["datasets"][used.id]["why"] == "benefit"
        assert any(event.get("dataset") == used.id for event in plan["history"])


def test_an_override_is_in_force_and_survives_redis(world: Zone, used: Stock) -> None:
    """Rule: "never" takes the space, at every gateway, also after Redis forgot it; null gives the decision back."""
    address = f"/datasets/{used.id[:12]}/override"
    reply = admin(world.nodes[1], "PUT", address, {"mode": "never"})
    assert (reply.status, reply.json["mode"]) == (200, "never")
    eventually(
        lambda: (shown(world, used)["caching"], shown(world, used)["why"]),
        lambda seen: seen == ("none", "override"),
        "no space",
    )
    world.redis.flush()
    join(world, used, "trainer")
    # Until then the dataset may be shown by the plan from before.
    eventually(
        lambda: get(world.nodes[0], "/plan")["overrides"],
        lambda seen: seen == {used.id: "never"},
        "the decision to be back",
    )
    eventually(lambda: shown(world, used)["why"], lambda why: why == "override", "it to be in force")
    assert admin(world.nodes[0], "PUT", address, {"mode": None}).json["mode"] is None
    eventually(lambda: shown(world, used)["why"], lambda why: why == "benefit", "the manager's decision")
    assert get(world.nodes[0], "/audit?action=datasets.override&limit=1")["items"][0]["after"] == {
        "mode": None,
        "quota": None,
    }


def test_a_quota_is_in_force_and_survives_redis(world: Zone, used: Stock) -> None:
    """Rule: a dataset with a quota below its size has a part of that size, also after Redis forgot it, and without it all."""
    address, size = f"/datasets/{used.id[:12]}/override", sum(map(len, used.bodies))

    def decide(quota: int | None) -> None:
        reply = admin(world.nodes[1], "PUT", address, {"mode": None, "quota": quota})
        assert (reply.status, reply.json["quota"]) == (200, quota)

    def become(caching: str, why: str) -> None:
        wanted = (caching, why)
        eventually(
            lambda: (shown(world, used)["caching"], shown(world, used)["why"]), lambda seen: seen == wanted, caching
        )

    decide(size - 1)
    become("part", "benefit")
    assert shown(world, used)["granted"] == size - 1
    world.redis.flush()
    join(world, used, "trainer")
    eventually(
        lambda: get(world.nodes[0], "/plan")["quotas"], lambda seen: seen == {used.id: size - 1}, "the quota to be back"
    )
    become("part", "benefit")
    assert shown(world, used)["granted"] < size
    decide(None)
    become("full", "benefit")


def test_a_decision_about_what_no_job_uses_is_in_force(world: Zone, used: Stock, tmp_path: Path) -> None:
    """Rule: pin, never and a quota hold for a dataset that is only read in batches, also after Redis was emptied."""
    made = stock(world.origin.s3, tmp_path, "unused", bytes_of(30, 400, "unused"))
    made.register(world.nodes[0], "auto")
    address = f"/datasets/{made.id}/override"
    eventually(lambda: get(world.nodes[1], "/datasets")["items"], lambda all_: made.id[:12] in str(all_), "the dataset")
    eventually(lambda: shown(world, made, 1)["bytes"], lambda size: size is not None, "its size")
    for body, caching, why in (
        ({"mode": "never"}, "none", "override"),
        ({"mode": "pin"}, "full", "override"),
        ({"mode": None, "quota": 1}, "part", "override"),
    ):
        assert admin(world.nodes[1], "PUT", address, body).status == 200
        eventually(
            lambda: (shown(world, made)["caching"], shown(world, made)["why"]),
            lambda seen, wanted=(caching, why): seen == wanted,
            caching,
        )
    world.redis.flush()
    join(world, used, "trainer")  # for which the manager waits
    eventually(
        lambda: get(world.nodes[0], "/plan")["quotas"], lambda seen: seen == {made.id: 1}, "the quota to be back"
    )
    eventually(lambda: shown(world, made)["why"], lambda why: why == "override", "the decision to be back")
    assert admin(world.nodes[0], "PUT", address, {"mode": None}).status == 200
    eventually(
        lambda: made.id in get(world.nodes[0], "/plan")["datasets"], lambda there: not there, "nobody's decision"
    )


def test_two_operators_do_not_overwrite_each_other(world: Zone, used: Stock) -> None:
    """Rule: with If-Match, a decision is refused after another operator's."""
    address = f"/datasets/{used.id}/override"
    etag = shown(world, used)["override"]["etag"]
    first = admin(world.nodes[0], "PUT", address, {"mode": "pin"}, headers={"If-Match": str(etag)})
    assert first.status == 200
    second = admin(world.nodes[1], "PUT", address, {"mode": "never"}, headers={"If-Match": str(etag)})
    assert (second.status, second.code) == (412, "PreconditionFailed")
    assert shown(world, used, 1)["override"]["mode"] == "pin"
    assert admin(world.nodes[0], "PUT", address, {"mode": None}).status == 200


@pytest.mark.parametrize(
    ("address", "body", "code"),
    [
        ("/datasets/0123456789ab/override", {"mode": "pin"}, "UnknownDataset"),
        ("/datasets/short/override", {"mode": "pin"}, "InvalidRequest"),
        ("/datasets/{}/override", {"mode": "always"}, "InvalidRequest"),
        ("/datasets/{}/override", {}, "InvalidRequest"),
        ("/datasets/{}/override", {"mode": "pin", "space": 1}, "InvalidRequest"),
        ("/datasets/{}/override", {"mode": "pin", "quota": 0}, "InvalidRequest"),
        ("/datasets/{}/override", {"quota": 1}, "InvalidRequest"),
    ],
)
def test_what_is_wrong_is_refused(world: Zone, used: Stock, address: str, body: dict[str, object], code: str) -> None:
    """Rule: an unknown dataset, decision or field changes nothing."""
    assert admin(world.nodes[0], "PUT", address.format(used.id), body).code == code


def test_jobs_of_all_tenants_are_listed_and_removed(world: Zone, used: Stock) -> None:
    """Rule: any gateway lists a job with its facts; removing it removes it everywhere, and a second removal finds none."""
    join(world, used, "other")
    jobs = eventually(
        lambda: {job["job"]: job for job in get(world.nodes[1], "/jobs")["items"]},
        lambda found: "other" in found,
        "the job",
    )
    assert (jobs["other"]["tenant"], jobs["other"]["gpus"], jobs["other"]["dataset_name"]) == ("a", 4, "used")
    assert admin(world.nodes[0], "DELETE", "/jobs/a/other").status == 204
    assert admin(world.nodes[1], "DELETE", "/jobs/a/other").code == "UnknownJob"
    eventually(
        lambda: [job["job"] for job in get(world.nodes[1], "/jobs")["items"]],
        lambda names: "other" not in names,
        "its end",
    )
