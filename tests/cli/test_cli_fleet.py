"""``larder-gateway`` at two real gateways that are one cache: any of them is asked for both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.batches import bytes_of
from rig.gateways import Running, cache_status, fleet, wait_for_fleet
from rig.origin import FakeOrigin, OriginThread
from rig.redis_server import RedisServer
from tests.cli.commands import Ran, run_here

TOKEN = "the-admin-token-of-the-fleet"


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with some objects."""
    with OriginThread() as started:
        for number, body in enumerate(bytes_of(8, 1000, 1)):
            started.put("photos", f"{number}.jpg", body)
        yield started


@pytest.fixture(scope="module")
def nodes(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """Two nodes."""
    home: Path = tmp_path_factory.mktemp("cli-fleet")
    with RedisServer() as redis:
        extra = f'[admin]\ntoken = "{TOKEN}"\n'
        with fleet(origin.endpoint, redis.url, 2, home, extra=extra) as started:
            yield started


def operator(node: Running, *words: str, status: int = 0) -> Ran:
    """Run ``larder-gateway`` at a node."""
    ran = run_here(*words, LARDER_ENDPOINT=node.endpoint, LARDER_ADMIN_TOKEN=TOKEN)
    assert ran.status == status, ran
    return ran


def test_a_node_is_drained_from_another(nodes):
    """Rule: a drained node leaves the ring of both nodes, whichever got the request, and returns after undrain."""
    first, second = nodes
    assert operator(first, "nodes", "drain", "node-1").out == "node-1 is LEAVING\n"
    wait_for_fleet(nodes, {"node-0": "READY", "node-1": "LEAVING"})
    assert "LEAVING" in operator(second, "status").out
    operator(first, "nodes", "drain", "node-0", status=1)
    operator(second, "nodes", "undrain", "node-1")
    wait_for_fleet(nodes, {"node-0": "READY", "node-1": "READY"})


def test_what_is_warm_is_purged_on_both(nodes):
    """Rule: a warm-up loads each object at its home; purge and verify reach every node."""
    first, second = nodes
    assert "done, 8 of 8 objects" in operator(first, "warm", "photos/", "--as", "GWA").out
    for number in range(8):
        assert cache_status(second.client().get_object(Bucket="photos", Key=f"{number}.jpg")).startswith("HIT")
    assert [node["node"] for node in operator(second, "verify", "--remote", "--json").json["nodes"]] == [
        "node-0",
        "node-1",
    ]
    done = operator(second, "purge", "photos/", "--yes", "--json").json
    assert (done["complete"], len(done["nodes"])) == (True, 2)
    assert done["objects"] >= 8
    answer = first.client().get_object(Bucket="photos", Key="0.jpg")
    assert cache_status(answer).startswith("MISS")


def test_a_job_is_shown(admin, operator):
    """Rule: one job's facts, each with its name, what was not measured left out; an unknown job is a problem."""
    row = {
        "tenant": "vision",
        "job": "run",
        "dataset_name": "imagenet",
        "gpus": 8,
        "epoch": 3,
        "phase": "measure",
        "cache": True,
    }
    measured = {"measured": {"what": "misses", "until": "the end of the epoch"}, "gpu_seconds_waited": 412.8}
    measured["last_epoch"] = {"epoch": 2, "items": 100, "origin_reads": 26, "per_item": 0.26, "least": 0.5}
    admin.answers["GET jobs"] = {"items": [{**row, **measured}, {"tenant": "nlp", "job": "other"}], "next": None}
    facts = dict(line.split("  ", 1) for line in operator("jobs", "show", "run").out.splitlines())
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    assert facts["job"] == "vision/run"
    assert facts["GPUs waited"] == "413 s"
    assert facts["origin reads"].startswith("0.26 per item of epoch 2; 0.50 is the least possible")
    assert facts["being measured"] == "what misses, until the end of the epoch"
    assert "t miss" not in facts
    assert operator("jobs", "show", "vision/run", "--json").json["gpus"] == 8
    assert operator("jobs", "show", "nlp/run").status == 1


def test_another_capacity_is_compared(admin, operator):
    """Rule: plan --what-if shows space, steps and savings now and then; the size is sent in bytes."""
    dataset = {"id": "33108813" * 8, "granted": 10**10, "granted_then": 4 * 10**10, "saved": 0.25, "saved_then": 1.0}
    job = {"job": "vision/run", "seconds": 0.342, "seconds_then": 0.1}
    sizes = {"capacity": 10**10, "capacity_then": 4 * 10**10, "saves": None, "saves_then": None}
    worth = {"gpu_seconds": 900.0, "gpu_seconds_then": 3600.0}
    admin.answers["GET plan/what-if"] = {**sizes, **worth, "datasets": [dataset], "jobs": [job]}
    out = operator("plan", "--what-if", "40GB").out
    assert admin.asked[-1].query == {"capacity": "40000000000"}
    rows = {" ".join(line.split()) for line in out.splitlines()}
    assert "saves 900 GPU seconds an hour now, 3,600 GPU seconds an hour then" in rows
    assert not any(row.startswith("not measured") for row in rows)
    admin.answers["GET plan/what-if"]["unmeasured"] = 2
    assert "2 jobs, not counted in what is saved" in operator("plan", "--what-if", "40GB").out
    assert "331088133310 10.0 GB 40.0 GB 25.0% 100.0%" in rows
    assert "vision/run 0.342 s 0.100 s" in rows


def test_a_plan_names_its_datasets(admin, operator):
    """Rule: tables and history have names of datasets; one that is not registered any more has the beginning of its id."""
    known, gone = "ab" * 32, "cd" * 32
    admin.answers["GET plan"] = {
        "version": 3, "capacity": 2000, "granted": 1000, "saves": None, "datasets": {known: {"caching": "part"}},
        "names": {known: ["imagenet"]}, "inputs": {},
        "history": [{"version": 3, "dataset": known, "what": "allocated"}, {"version": 2, "dataset": gone, "what": "released"}],
    }  # fmt: skip
    rows = [line.split() for line in operator("plan").out.splitlines()]
    assert ["imagenet", "part"] in [row[:2] for row in rows]
    assert ["-", "3", "allocated", "imagenet", "-"] in rows
    assert ["-", "2", "released", gone[:12], "-"] in rows
    outcome = {"granted": 0, "granted_then": 10**9, "saved": 0.0, "saved_then": 1.0}
    admin.answers["GET plan/what-if"] = {
        "capacity": 0, "capacity_then": 10**9, "saves": None, "saves_then": None, "gpu_seconds": 0.0, "gpu_seconds_then": 9.0,
        "datasets": [{"id": known, "names": ["imagenet"], **outcome}, {"id": gone, "names": [], **outcome}], "jobs": [],
    }  # fmt: skip
    rows = [line.split() for line in operator("plan", "--what-if", "1GB").out.splitlines()]
    assert [row[0] for row in rows if row[-1:] == ["100.0%"]] == ["imagenet", gone[:12]]
