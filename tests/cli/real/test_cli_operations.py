"""Nodes, purges, warm-ups, verifications, datasets and jobs, as operators and users type them at a real gateway."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from rig.batches import bytes_of, stock
from rig.origin_faults import Gate, Hang
from rig.processes import wait_until
from rig.v1 import GWA, ask
from tests.cli.commands import at_terminal, start
from tests.cli.real.reads import SOON, cached, served


def test_status_and_nodes(operator, running):
    """Rule: status shows the node and its contents; the only node is drained by force alone, and returns by undrain."""
    served(running, *GWA)
    (node,) = operator("nodes", "--json").json["items"]
    out = operator("status").out
    assert node["id"] in out
    assert running.endpoint in out
    assert "--force" not in operator("nodes", "drain", node["id"], status=1).out
    assert operator("nodes", "drain", node["id"], "--force").out == f"{node['id']} is LEAVING\n"
    assert operator("nodes", "undrain", node["id"]).out == f"{node['id']} is READY\n"
    wait_until(lambda: operator("nodes", "--json").json["items"][0]["state"] == "READY", SOON, "the node's return")


def test_purge(operator, running):
    """Rule: a dry run drops nothing; --yes drops it on every node, and the next read misses; no terminal is wrong usage."""
    cached(running)
    assert operator("purge", "photos/train/", "--dry-run", "--json").json["objects"] >= 1
    assert served(running, *GWA).startswith("HIT")
    assert "--yes" in operator("purge", "photos/train/", status=2).err
    done = operator("purge", "s3://photos/train/", "--yes")
    assert done.out.splitlines()[0].split() == ["NODE", "OBJECTS", "BYTES", "FAILURE"]
    assert served(running, *GWA).startswith("MISS")


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_purge_asks(operator, running, variables, answer, status):
    """Rule: at a terminal the command shows the matches and asks; only "yes" confirms."""
    cached(running)
    ran = at_terminal("purge", "photos/", typed=f"{answer}\n", variables={**variables, "NO_COLOR": "1"})
    assert ran.status == status, ran
    assert "objects" in ran.out
    assert "[y/N]" in ran.out
    assert served(running, *GWA).startswith("MISS" if status == 0 else "HIT")


def test_explain(operator, running):
    """Rule: the answer predicts the next read, with the rule, the grant and the cache state behind it."""
    operator("purge", "photos/", "--yes")
    cold = operator("explain", "s3://photos/train/00.jpg", "--as", GWA[0])
    assert "MISS cold" in cold.out
    assert "photos/**: freshness immutable" in cold.out
    cached(running)
    known = operator("explain", "photos/train/00.jpg", "--as", GWA[0], "--json").json
    assert (known["outcome"], known["known"]) == ("HIT", True)
    assert "HIT" in operator("explain", "photos/train/00.jpg").out
    assert "access_key_id" in operator("explain", "photos/train/00.jpg", "--as", "nobody", status=1).err


def test_explain_of_all_misses(operator, running):
    """Rule: without an object the command lists misses by reason, each with a remedy."""
    served(running, *GWA)
    wait_until(lambda: "MISS" in operator("explain").out, SOON, "the node's word on its misses")
    assert {one["reason"] for one in operator("explain", "--json").json["items"]} >= {"cold"}


def test_verify_remote(operator, running):
    """Rule: the nodes verify their caches; damage is named, and the status is 1."""
    cached(running)
    sound = operator("verify", "--remote")
    assert " done " in sound.out
    cache = Path(running.config).parent / "cache" / "blobs"
    blob = next(path for path in sorted(cache.rglob("*")) if path.is_file() and path.stat().st_size == 10_000)
    old = time.time() - 3600
    blob.chmod(0o644)
    blob.write_bytes(b"x" * 10_000)
    os.utime(blob, (old, old))
    damaged = operator("verify", "--remote", "--json", status=1).json
    assert damaged["sound"] is False
    assert damaged["nodes"][0]["corrupt"] == 1
    blob.unlink()
    operator("purge", "photos/", "--yes")


def test_a_dataset_and_its_plan(operator, user, origin, running, tmp_path):
    """Rule: a dataset is found by name or id; pinned, the plan has it, and says that it was decided here; a mode and a
    quota are changed apart from each other; auto takes both back. Both CLIs show whether its listings are recorded."""
    made = stock(origin, tmp_path, "pinned", bytes_of(20, 1000, 7))
    assert user("datasets", "register", "pinned", str(made.file)).status == 0
    wait_until(lambda: "pinned" in operator("datasets", "list").out, SOON, "the dataset")
    assert operator("datasets", "pin", "pinned").out == "pinned: pin, from the next plan on\n"
    assert operator("datasets", "show", made.id, "--json").json["override"]["mode"] == "pin"
    assert "pin" in operator("datasets", "show", "pinned").out
    assert "forward" in operator("datasets", "show", "pinned").out
    user("datasets", "register", "pinned", str(made.file), "--listing", "immutable")
    assert "data/pinned/" in user("datasets", "show", "pinned").out
    wait_until(
        lambda: "recorded: " in operator("datasets", "show", "pinned").out, SOON, "the option of its registration"
    )
    assert [row["listing"] for row in operator("datasets", "list", "--json").json["items"]] == ["immutable"]
    assert operator("plan", "--json").json["overrides"] == {made.id: "pin"}
    operator("plan")
    assert operator("datasets", "quota", "pinned", "5kB").out == "pinned: a quota of 5.0 kB, from the next plan on\n"
    override = operator("datasets", "never", "pinned", "--json").json
    assert (override["mode"], override["quota"]) == ("never", 5000)
    operator("datasets", "quota", "pinned", "none")
    override = operator("datasets", "show", "pinned", "--json").json["override"]
    assert (override["mode"], override["quota"]) == ("never", None)
    operator("datasets", "quota", "pinned", "5kB")
    operator("datasets", "auto", made.id[:12])
    override = operator("datasets", "show", "pinned", "--json").json["override"]
    assert (override["mode"], override["quota"]) == (None, None)
    assert "datasets list" in operator("datasets", "pin", "nothing", status=1).err


def test_jobs(operator, user, origin, running, tmp_path):
    """Rule: both command lines list and show a registered job until it is removed; a larger cache has room for its dataset."""
    made = stock(origin, tmp_path, "jobs", bytes_of(20, 1000, 8))
    made.register(running)
    body = {"job": "resnet-1", "dataset": "jobs", "gpus": 8, "batch_size": 4, "ranks": 1}
    assert ask(running, "POST", "/v1/jobs", json.dumps(body).encode()).status == 201
    wait_until(lambda: "a/resnet-1" in operator("jobs", "list").out, SOON, "the job")
    assert user("jobs", "show", "resnet-1", "--json").json["gpus"] == 8
    assert "resnet-1" in user("jobs", "list").out
    operators, users = (
        [line for line in run("jobs", "show", "resnet-1").out.splitlines() if not line.startswith("silent")]
        for run in (operator, user)
    )
    assert operators[0].split() == ["job", "a/resnet-1"]
    only_operators = ("GPUs waited", "being measured")
    shared = [line.split() for line in operators[1:] if not line.startswith(only_operators)]
    assert [line.split() for line in users[1:]] == shared
    wait_until(lambda: made.id in operator("plan", "--json").json["inputs"]["datasets"], SOON, "its place in the plan")
    then = operator("plan", "--what-if", "1GB", "--json").json
    assert [dataset["granted_then"] for dataset in then["datasets"] if dataset["id"] == made.id] == [20_000]
    outcome = operator("plan", "--what-if", "1GB").out
    assert "saves         0 GPU seconds an hour now, 0 GPU seconds an hour then" in outcome
    assert "not measured  1 job, not counted in what is saved" in outcome
    assert made.id[:12] not in outcome + operator("plan").out
    assert operator("jobs", "remove", "resnet-1").out == "a/resnet-1 is forgotten\n"
    assert user("jobs", "list").out == "no jobs\n"
    assert "jobs list" in operator("jobs", "remove", "resnet-1", status=1).err


def test_bench(user, origin, running, tmp_path):
    """Rule: a registered dataset is measured, in batches and by plain GETs of the same items."""
    made = stock(origin, tmp_path, "measured", bytes_of(40, 1000, 9))
    made.register(running)
    ran = user("bench", "measured", "--batch-size", "8", "--seconds", "0.2", "--compare", "--json")
    assert ran.status == 0, ran
    batches, plain = ran.json["runs"]
    assert (batches["way"], plain["way"]) == ("batches", "plain S3")
    assert batches["bytes"] == 1000 * batches["items"] > 0
    assert plain["bytes"] == 1000 * plain["items"] > 0


def test_warm(operator, running):
    """Rule: warm waits for the end and shows the bytes read; then reads are hits."""
    operator("purge", "photos/", "--yes")
    done = operator("warm", "photos/train/", "--as", GWA[0])
    first, second = done.out.splitlines()
    assert first == "photos/train/: done, 12 of 12 objects, 120.0 kB of 120.0 kB"
    assert second.startswith("run by node ")
    assert served(running, *GWA).startswith("HIT")
    again = operator("warm", "s3://photos/train/", "--as", GWA[0], "--json").json
    assert (again["state"], again["there"]) == ("done", 12)
    assert again["id"] in operator("warm", "--list").out


def test_a_warm_up_of_a_misspelt_prefix(operator):
    """Rule: a prefix that no object has is a problem, in the console's words."""
    done = operator("warm", "photos/trian/", "--as", GWA[0], status=1)
    assert done.out.splitlines()[:2] == [
        "photos/trian/: done, 0 of 0 objects, 0 B of 0 B",
        "There was nothing to load: no object has this prefix.",
    ]


def test_a_warm_up_of_a_dataset(operator, origin, running, tmp_path):
    """Rule: --dataset reads the items of a dataset of the access key's tenant."""
    made = stock(origin, tmp_path, "warmed", bytes_of(20, 1000, 10))
    made.register(running)
    done = operator("warm", "--dataset", "warmed", "--as", GWA[0])
    assert "done, 20 of 20 items" in done.out
    assert made.missing(running) == []


def test_profiles(operator, running):
    """Rule: a key's reads are recorded, shown, and loaded into the cache again."""
    said = operator("profiles", "record", "eval", "photos/train/", "--as", GWA[0], "--for", "5m")
    assert said.out.startswith("eval is recorded until ")
    assert "profiles stop eval" in said.err
    assert "already" in operator("profiles", "record", "eval", "photos/", "--as", GWA[0], status=1).err

    def begun() -> bool:
        served(running, *GWA)
        return bool(operator("profiles", "show", "eval", "--json").json["reads"])

    wait_until(begun, SOON, "the recording to begin")
    stopped = operator("profiles", "stop", "eval")
    assert re.fullmatch(r"eval is done: 1 reads, 10.0 kB\n", stopped.out)
    shown = operator("profiles", "show", "eval").out
    assert "photos/train/" in shown
    assert f"{GWA[0]}, of the tenant " in shown
    assert "0-10000" in shown
    assert "eval" in operator("profiles", "list").out
    operator("purge", "photos/", "--yes")
    done = operator("profiles", "warm", "eval", "--as", GWA[0])
    assert done.out.startswith("profile eval: done, 1 of 1 objects, 10.0 kB of 10.0 kB")
    assert served(running, *GWA).startswith("HIT")
    assert operator("profiles", "delete", "eval").out == "eval is deleted\n"
    assert "no such profile" in operator("profiles", "show", "eval", status=1).err


def test_ctrl_c_leaves_a_warm_up_running(operator, variables, origin):
    """Rule: Ctrl-C stops watching with 130 and prints commands that cancel or resume the warm-up."""
    operator("purge", "photos/", "--yes")
    gate = Gate()
    origin.inject(Hang(method="GET", path="/photos/train/05.jpg", gate=gate, times=99))
    watching = start("warm", "photos/train/", "--as", GWA[0], **variables)
    assert watching.stderr is not None
    assert watching.stderr.readline().startswith("warm-up ")
    gate.arrival.result(SOON)
    watching.send_signal(signal.SIGINT)
    out, said = watching.communicate(timeout=SOON)
    assert (watching.returncode, out) == (130, "")
    assert "Traceback" not in said
    (name,) = set(re.findall(r"larder-gateway warm --(?:watch|cancel) ([0-9a-f]+)", said))
    going = operator("warm", "--list", "--json").json["items"][0]
    assert (going["id"], going["state"]) == (name, "running")
    assert "cancelled" in operator("warm", "--cancel", name).out
    gate.open()
    origin.heal()
    assert "done, 12 of 12 objects" in operator("warm", "--resume", name).out


def test_a_warm_up_that_is_not_waited_for(operator):
    """Rule: --detach prints the command to watch the warm-up, and does not wait."""
    begun = operator("warm", "photos/train/", "--as", GWA[0], "--detach", "--json").json
    assert operator("warm", "--watch", begun["id"], "--json").json["state"] == "done"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "give BUCKET/PREFIX"),
        (("photos/", "--list"), 2, "give BUCKET/PREFIX"),
        (("photos/",), 2, "--as"),
        (("photos/", "--as", "nobody"), 1, "access_key_id"),
        (("--dataset", "none", "--as", GWA[0]), 1, "none"),
        (("--cancel", "0" * 32), 1, "Unknown warm-up"),
    ],
)
def test_warm_ups_that_make_no_sense(operator, words, status, said):
    """Rule: a missing argument is named as wrong usage; a refusal is shown in the gateway's words."""
    assert said in operator("warm", *words, status=status).err
