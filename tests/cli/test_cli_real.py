"""``larder-gateway`` and ``larder`` at a real gateway: what operators and users type, and what comes of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from gateway.testing.origin import FakeOrigin, OriginThread
from gateway.testing.origin_faults import Gate, Hang
from tests.batches import bytes_of, stock
from tests.cli.commands import USER, Ran, at_terminal, run, run_here, start
from tests.gateways import Running, Settings, cache_status, gateway
from tests.origins.processes import wait_until
from tests.v1 import GWA, ask

ADMIN, READER = "the-admin-token-of-the-tests", "a-token-that-may-only-look"
EXTRA = f"""
[admin]
token = "{ADMIN}"
read_token = "{READER}"
[fleet]
heartbeat = "200ms"
[manager]
job_expire = "10m"
"""
SOON = 30.0
Operator = Callable[..., Ran]


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with some objects."""
    with OriginThread() as started:
        for number in range(12):
            started.put("photos", f"train/{number:02}.jpg", bytes_of(1, 10_000, number)[0])
        yield started


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose admin endpoints are open."""
    home = tmp_path_factory.mktemp("cli")
    settings = Settings(
        origin.endpoint, home / "cache", rules=({"match": "photos/**", "freshness": "immutable"},), extra=EXTRA
    )
    with gateway(settings, home) as started:
        yield started


@pytest.fixture
def variables(running: Running) -> dict[str, str]:
    """What an operator has set."""
    return {"LARDER_ENDPOINT": running.endpoint, "LARDER_ADMIN_TOKEN": ADMIN}


@pytest.fixture
def operator(variables: dict[str, str]) -> Operator:
    """Runs ``larder-gateway`` there; what it was to do must be done, unless the test says which status it has."""

    def typed(*words: str, status: int = 0, **more: str) -> Ran:
        ran = run_here(*words, **{**variables, **more})
        assert ran.status == status, ran
        return ran

    return typed


@pytest.fixture
def user(running: Running) -> Operator:
    """Runs ``larder`` there."""
    keys = {"AWS_ACCESS_KEY_ID": GWA[0], "AWS_SECRET_ACCESS_KEY": GWA[1], "LARDER_ENDPOINT": running.endpoint}
    return lambda *words: run(*words, program=USER, **keys)


def served(running: Running, key: str, secret: str) -> str:
    """What a read with an access key comes to: the cache's word, or the code of the refusal."""
    try:
        return cache_status(running.client(key, secret).get_object(Bucket="photos", Key="train/00.jpg"))
    except ClientError as refused:
        return str(refused.response["Error"]["Code"])


def cached(running: Running) -> None:
    """Have the first object in the cache; what a miss has fetched is there a moment after its answer."""
    wait_until(lambda: served(running, *GWA).startswith("HIT"), SOON, "a hit")


def test_a_key_from_its_creation_to_its_revocation(operator, running):
    """Rule: a key that is created works with the lines that were printed, read by a shell; revoked, it works no more."""
    operator("tenants", "create", "vision", "--description", "the vision group's $HOME")
    made = operator("credentials", "create", "--tenant", "vision", "--allow", "photos/**", "--read-only")
    script = f'{made.out}\nprintf "%s\\n%s" "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"'
    key, secret = subprocess.check_output(["/bin/sh", "-c", script], text=True).split("\n")
    wait_until(lambda: served(running, key, secret).startswith(("HIT", "MISS")), SOON, "the new key")
    operator("credentials", "revoke", key)
    wait_until(lambda: served(running, key, secret) == "InvalidAccessKeyId", SOON, "the revocation")
    listed = operator("credentials", "list", "--tenant", "vision")
    assert "revoked" in listed.out
    (entry,) = operator("credentials", "--tenant", "vision", "--json").json["items"]
    assert (entry["access_key_id"], entry["revoked"], entry["read_only"]) == (key, True, True)
    log = operator("audit", "--target", key)
    assert "credentials.create" in log.out
    assert "credentials.revoke" in log.out
    assert secret not in listed.out + log.out + json.dumps(entry)


def test_a_rotation_with_grace(operator, running):
    """Rule: after a rotation both secrets work for the grace; --json has the new one, once."""
    made = operator("credentials", "create", "--access-key", "ROTATED", "--json").json
    wait_until(lambda: served(running, "ROTATED", made["secret_access_key"]).startswith("HIT"), SOON, "the new key")
    new = operator("credentials", "rotate", "ROTATED", "--grace", "1h", "--json").json
    assert new["secret_access_key"] != made["secret_access_key"]
    wait_until(lambda: served(running, "ROTATED", new["secret_access_key"]).startswith("HIT"), SOON, "the new secret")
    assert served(running, "ROTATED", made["secret_access_key"]).startswith("HIT")
    operator("credentials", "remove", "ROTATED")


def test_a_tenant_that_is_disabled(operator, running):
    """Rule: a disabled tenant's keys are refused until it is enabled; one that has keys is not removed."""
    operator("tenants", "create", "sound")
    secret = operator("credentials", "create", "--tenant", "sound", "--access-key", "SOUND", "--json").json[
        "secret_access_key"
    ]
    wait_until(lambda: served(running, "SOUND", secret).startswith(("HIT", "MISS")), SOON, "the new key")
    operator("tenants", "disable", "sound")
    wait_until(lambda: served(running, "SOUND", secret) == "InvalidAccessKeyId", SOON, "the refusal")
    operator("tenants", "enable", "sound")
    wait_until(lambda: served(running, "SOUND", secret).startswith("HIT"), SOON, "the service")
    assert "Conflict" in operator("tenants", "remove", "sound", status=1).err
    operator("credentials", "remove", "SOUND")
    operator("tenants", "remove", "sound")
    assert "sound" not in operator("tenants", "list").out


def test_the_token_that_may_only_look(operator):
    """Rule: admin.read_token shows, and is refused every change with the reason."""
    assert operator("credentials", "list", LARDER_ADMIN_TOKEN=READER).status == 0
    refused = operator("tenants", "create", "x", status=1, LARDER_ADMIN_TOKEN=READER)
    assert "ReadOnlyToken" in refused.err


def test_names_that_are_none(operator):
    """Rule: a name that the gateway does not take is refused by the field, and nothing is made."""
    refused = operator("tenants", "create", "<script>", status=1)
    assert "name: " in refused.err
    assert "script" not in operator("tenants", "list").out


def test_an_origin(operator, tmp_path):
    """Rule: an origin's secret comes from a file, and is shown nowhere."""
    secret = tmp_path / "secret"
    secret.write_text("the-secret-of-the-store\n")
    operator(
        "origins",
        "create",
        "archive",
        "--address",
        "http://127.0.0.1:9",
        "--access-key",
        "STORE",
        "--secret-file",
        str(secret),
    )
    listed = operator("origins")
    assert "archive" in listed.out
    assert (
        "the-secret-of-the-store"
        not in listed.out + operator("origins", "--json").out + operator("audit", "--json").out
    )
    operator("origins", "remove", "archive")


def test_rules(operator, tmp_path):
    """Rule: rules are replaced from a file; check says which one holds, and ends with 1 when one can never hold."""
    file = tmp_path / "rules.toml"
    file.write_text('[[rules]]\nmatch = "photos/**"\nfreshness = "10m"\n[[rules]]\nmatch = "photos/train/**"\n')
    checked = operator("rules", "check", "--file", str(file), "--json", status=1).json["items"]
    assert [rule["verdict"] for rule in checked][:2] == ["matches", "hidden"]
    assert [rule["source"] for rule in operator("rules", "list", "--json").json["items"]] == ["file"]
    operator("rules", "replace", str(file))
    assert operator("rules", "check", "s3://photos/train/01.jpg").out == "rule 0 holds: photos/** (catalog)\n"
    file.write_text("")
    operator("rules", "replace", str(file))
    assert operator("rules", "check", "photos/train/01.jpg").out == "rule 0 holds: photos/** (file)\n"
    assert "no rule holds" in operator("rules", "check", "elsewhere/x").out


@pytest.mark.parametrize("content", ["[[rules]\n", '[cache]\ndir = "x"\n', "rules = 3\n"])
def test_a_file_of_no_rules(operator, tmp_path, content):
    """Rule: a file with anything but rules is wrong usage, and nothing is asked for."""
    file = tmp_path / "rules.toml"
    file.write_text(content)
    assert str(file) in operator("rules", "replace", str(file), status=2).err


def test_status_and_nodes(operator, running):
    """Rule: status has the node with what it holds; the only node is not drained unforced, and comes back by undrain."""
    served(running, *GWA)
    (node,) = operator("nodes", "--json").json["items"]
    out = operator("status").out
    assert node["id"] in out
    assert running.endpoint in out
    assert "--force" not in operator("nodes", "drain", node["id"], status=1).out
    assert operator("nodes", "drain", node["id"], "--force").out == f"{node['id']} is LEAVING\n"
    assert operator("nodes", "undrain", node["id"]).out == f"{node['id']} is READY\n"
    wait_until(lambda: operator("nodes", "--json").json["items"][0]["state"] == "READY", SOON, "the node's return")


def test_migrate(tmp_path):
    """Rule: migrate makes the tables where there are none, and says so; again, nothing is to be done."""
    config = tmp_path / "larder.toml"
    config.write_text(f'[cache]\ndir = "{tmp_path}/cache"\n[[origins]]\nendpoint = "http://127.0.0.1:5000"\n')
    first = run_here("migrate", "--config", str(config), "--json")
    assert first.status == 0, first
    assert first.json["before"] is None
    assert "up to date" in run_here("migrate", "--config", str(config)).out
    assert (tmp_path / "cache" / "catalog.db").stat().st_mode & 0o077 == 0


def test_migrate_of_a_database_that_is_not_there(tmp_path):
    """Rule: a database that cannot be reached is a problem without a traceback or the password."""
    config = tmp_path / "larder.toml"
    config.write_text(
        '[database]\nurl = "postgresql+asyncpg://larder:hush@127.0.0.1:9/larder"\n'
        'encryption_key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="\n[[origins]]\nendpoint = "http://127.0.0.1:5000"\n'
    )
    ran = run_here("migrate", "--config", str(config))
    assert ran.status == 1
    assert "Traceback" not in ran.err
    assert "hush" not in ran.err
    shown = run_here("check-config", str(config))
    assert "hush" not in shown.out
    assert "AAAA" not in shown.out


def test_purge(operator, running):
    """Rule: a dry run forgets nothing; --yes does, on every node, and the next read is a miss; nobody to ask is wrong usage."""
    cached(running)
    assert operator("purge", "photos/train/", "--dry-run", "--json").json["objects"] >= 1
    assert served(running, *GWA).startswith("HIT")
    assert "--yes" in operator("purge", "photos/train/", status=2).err
    done = operator("purge", "s3://photos/train/", "--yes")
    assert done.out.splitlines()[0].split() == ["NODE", "OBJECTS", "BYTES", "FAILURE"]
    assert served(running, *GWA).startswith("MISS")


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_purge_asks(operator, running, variables, answer, status):
    """Rule: at a terminal it shows what there is and asks; only a yes is one."""
    cached(running)
    ran = at_terminal("purge", "photos/", typed=f"{answer}\n", variables={**variables, "NO_COLOR": "1"})
    assert ran.status == status, ran
    assert "objects" in ran.out
    assert "[y/N]" in ran.out
    assert served(running, *GWA).startswith("MISS" if status == 0 else "HIT")


def test_explain(operator, running):
    """Rule: it says what the next read will be, and what a rule, a grant and the cache have to do with it."""
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
    """Rule: without an object it lists what was no hit by reason, with what would make fewer of them."""
    served(running, *GWA)
    wait_until(lambda: "MISS" in operator("explain").out, SOON, "the node's word on its misses")
    assert {one["reason"] for one in operator("explain", "--json").json["items"]} >= {"cold"}


def test_verify_remote(operator, running):
    """Rule: the nodes read through their caches; what is damaged ends it with 1, and is named."""
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
    """Rule: a dataset is found by name or id; pinned, the plan has it, and says that it was decided here; auto takes it back."""
    made = stock(origin, tmp_path, "pinned", bytes_of(20, 1000, 7))
    assert user("datasets", "register", "pinned", str(made.file)).status == 0
    wait_until(lambda: "pinned" in operator("datasets", "list").out, SOON, "the dataset")
    assert operator("datasets", "pin", "pinned").out == "pinned: pin, from the next plan on\n"
    assert operator("datasets", "show", made.id, "--json").json["override"]["mode"] == "pin"
    assert "pin" in operator("datasets", "show", "pinned").out
    assert operator("plan", "--json").json["overrides"] == {made.id: "pin"}
    operator("plan")
    operator("datasets", "auto", made.id[:12])
    assert operator("datasets", "show", "pinned", "--json").json["override"]["mode"] is None
    assert "datasets list" in operator("datasets", "pin", "nothing", status=1).err


def test_jobs(operator, user, origin, running, tmp_path):
    """Rule: a job that registered is listed by both command lines, and is gone when it is removed."""
    made = stock(origin, tmp_path, "jobs", bytes_of(20, 1000, 8))
    made.register(running)
    body = {"job": "resnet-1", "dataset": "jobs", "gpus": 8, "batch_size": 4, "ranks": 1}
    assert ask(running, "POST", "/v1/jobs", json.dumps(body).encode()).status == 201
    wait_until(lambda: "a/resnet-1" in operator("jobs", "list").out, SOON, "the job")
    assert user("jobs", "show", "resnet-1", "--json").json["gpus"] == 8
    assert "resnet-1" in user("jobs", "list").out
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
    """Rule: warm waits for the end and says what was read; then reads are hits."""
    operator("purge", "photos/", "--yes")
    done = operator("warm", "photos/train/", "--as", GWA[0])
    assert done.out == "photos/train/: done, 12 of 12 objects, 120.0 kB of 120.0 kB\n"
    assert served(running, *GWA).startswith("HIT")
    again = operator("warm", "s3://photos/train/", "--as", GWA[0], "--json").json
    assert (again["state"], again["there"]) == ("done", 12)
    assert again["id"] in operator("warm", "--list").out


def test_a_warm_up_of_a_dataset(operator, origin, running, tmp_path):
    """Rule: --dataset reads the items of a dataset of the access key's tenant."""
    made = stock(origin, tmp_path, "warmed", bytes_of(20, 1000, 10))
    made.register(running)
    done = operator("warm", "--dataset", "warmed", "--as", GWA[0])
    assert "done, 20 of 20 items" in done.out
    assert made.missing(running) == []


def test_ctrl_c_leaves_a_warm_up_running(operator, variables, origin):
    """Rule: Ctrl-C ends the watching with 130 and says how to come back; what is printed can be typed, and ends or resumes it."""
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
    """Rule: --detach says how to watch it, and does not wait."""
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
        (("--cancel", "0" * 32), 1, "no such"),
    ],
)
def test_warm_ups_that_make_no_sense(operator, words, status, said):
    """Rule: what is missing is named as wrong usage; what the gateway refuses is told in its words."""
    assert said in operator("warm", *words, status=status).err
