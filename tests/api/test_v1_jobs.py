"""/-/v1/jobs and /-/v1/plan of a real gateway: registrations, heartbeats, directives, refusals."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import pytest

from gateway.api.v1.job_documents import Heartbeat
from gateway.api.v1.jobs import JobParts, JobService
from gateway.engine.base.planned import Planned
from gateway.fleet.jobs.jobs import Beat, HeardJob, JobRecord
from gateway.model.frames import ItemFlag
from gateway.model.keys import OriginIdentity, Principal
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.plan import Plan
from rig.batches import Stock, bytes_of, decoded, stock, taken
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.processes import wait_until
from rig.v1 import GWA, Key, Reply, ask

GWB: Key = ("GWB", "gateway-secret-b")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {"access_key_id": GWB[0], "secret_access_key": GWB[1], "tenant": "b"},
)
EXTRA = """
[fleet]
heartbeat = "100ms"
[manager]
probe_batches = 4
"""
SOON = 30.0
ITEM = 10_000


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway of two workers with room for 60 of the items below."""
    home = tmp_path_factory.mktemp("jobs")
    settings = Settings(
        origin.endpoint, home / "cache", capacity="600KB", workers=2, credentials=CREDENTIALS, extra=EXTRA
    )
    with gateway(settings, home) as started:
        yield started


@pytest.fixture(scope="module")
def stocks(origin: FakeOrigin, running: Running, tmp_path_factory: pytest.TempPathFactory) -> list[Stock]:
    """Returns datasets of 100 items, none of which fits; tests share them, because reading a digest file takes long."""
    home = tmp_path_factory.mktemp("stocks")
    made = [stock(origin, home, f"data-{number}", bytes_of(100, ITEM, number)) for number in range(3)]
    for one in made:
        one.register(running, "auto")
    return made


@dataclass
class Data:
    """A dataset, and the name of a job that no other test has."""

    stock: Stock
    job: str


@pytest.fixture
def data(running: Running, stocks: list[Stock], request: pytest.FixtureRequest) -> Iterator[Data]:
    """Returns an unregistered job of the first dataset; removes it after the test."""
    made = Data(stocks[0], re.sub("[^A-Za-z0-9._-]", "-", request.node.name)[-120:])
    yield made
    ask(running, "DELETE", f"/v1/jobs/{made.job}")


def post(running: Running, path: str, body: Any, key: Key = GWA) -> Reply:
    """POST a JSON body; bytes are sent unchanged."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(running, "POST", path, text, key)


def job(data: Data, **others: Any) -> dict[str, Any]:
    """A registration."""
    return {"job": data.job, "dataset": data.stock.name, "gpus": 4, "batch_size": 10, "ranks": 2, **others}


def beat(**others: Any) -> dict[str, Any]:
    """A heartbeat."""
    said: dict[str, Any] = {"rank": 0, "epoch": 0, "upcoming": [*range(10), 0, 1], "epoch_left": 10, "phases": {}}
    return {**said, **others}


def times(steps: int, seconds: float, hits: int = 0) -> dict[str, Any]:
    """One phase."""
    return {"steps": steps, "seconds": seconds, "waited": 0.5 * seconds, "items": 10 * steps, "hits": hits}


def register(running: Running, data: Data, key: Key = GWA, **others: Any) -> Reply:
    """Register the job of a dataset."""
    return post(running, "/v1/jobs", job(data, **others), key)


def heartbeat(running: Running, data: Data, key: Key = GWA, **others: Any) -> Reply:
    """One heartbeat of it."""
    return post(running, f"/v1/jobs/{data.job}/heartbeat", beat(**others), key)


def planned(running: Running, data: Data) -> dict[str, Any]:
    """The plan's entry of a dataset; empty without one."""
    found: dict[str, Any] = ask(running, "GET", "/v1/plan").json["datasets"].get(data.stock.id, {})
    return found


# --- a job's life


def test_ranks_register_one_job(running: Running, data: Data) -> None:
    """Rule: the first rank is answered 201, the others 200, all with the dataset's id and directives."""
    first, second = register(running, data), register(running, data)
    assert (first.status, second.status) == (201, 200)
    assert first.json["dataset"] == data.stock.id
    assert first.json["directives"].keys() == {
        "caching", "cache", "phase", "chunk", "plan", "preload", "heartbeat"
    }  # fmt: skip
    assert first.json["directives"]["heartbeat"] == 0.1
    by_id = post(running, "/v1/jobs", job(data, dataset=data.stock.id))
    assert by_id.status == 200


def test_all_ranks_at_once(running: Running, data: Data) -> None:
    """Rule: of ranks that register at the same moment, over two workers, exactly one is the first."""
    with ThreadPoolExecutor(8) as pool:
        statuses = [reply.status for reply in pool.map(lambda _: register(running, data, ranks=8), range(8))]
    assert sorted(statuses) == [200] * 7 + [201]


def test_a_job_is_shown_listed_and_removed(running: Running, data: Data) -> None:
    """Rule: a job is shown to its tenant until it is removed; after that its heartbeats get 404."""
    register(running, data)
    phases = {"probe-miss": times(10, 20.0), "measure": times(10, 5.0, 100)}
    assert heartbeat(running, data, phases=phases).status == 200
    assert heartbeat(running, data, rank=1, phases=phases, queue=3).status == 200
    shown = ask(running, "GET", f"/v1/jobs/{data.job}").json
    assert (shown["gpus"], shown["ranks"], shown["ranks_heard"], shown["name"]) == (4, 2, 2, data.stock.name)
    assert shown["epoch"] == 0
    assert (shown["t_miss"], shown["t_hit"]) == (2.0, 0.5)
    assert data.job in [one["job"] for one in ask(running, "GET", "/v1/jobs").json["jobs"]]
    assert ask(running, "DELETE", f"/v1/jobs/{data.job}").status == 204
    for reply in (
        ask(running, "DELETE", f"/v1/jobs/{data.job}"),
        ask(running, "GET", f"/v1/jobs/{data.job}"),
        heartbeat(running, data),
        post(running, f"/v1/jobs/{data.job}/epochs/0", {"order": [0]}),
    ):
        assert (reply.status, reply.code) == (404, "UnknownJob")


def test_a_job_gets_directives_and_an_end_to_probing(running: Running, data: Data, stocks: list[Stock]) -> None:
    """Rule: a cold job is measured without hits, then with them, then left alone; it shows what its space makes of that."""
    data.stock = stocks[2]
    register(running, data, ranks=1)
    heard: list[tuple[str, bool, str]] = []
    totals = {"probe-miss": [0, 0.0, 0], "measure": [0, 0.0, 0], "steady": [0, 0.0, 0]}

    def step() -> bool:
        phases = {name: times(steps, seconds, hits) for name, (steps, seconds, hits) in totals.items()}
        said = heartbeat(running, data, phases=phases).json["directives"]
        heard.append((said["phase"], said["cache"], said["caching"]))
        mine = totals[said["phase"]]
        mine[0] += 4
        mine[1] += 4.0 if said["phase"] == "probe-miss" else 1.0
        mine[2] += 0 if said["phase"] == "probe-miss" else 40
        benefit = ask(running, "GET", f"/v1/jobs/{data.job}").json["benefit"]
        return said["phase"] == "steady" and bool(benefit)

    wait_until(step, SOON, "the end of probing")
    assert [phase for phase, _ in groupby(phase for phase, _, _ in heard)] == ["probe-miss", "measure", "steady"]
    assert {(cache, caching) for _, cache, caching in heard} == {(True, "part")}

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = ask(running, "GET", f"/v1/jobs/{data.job}").json
        return found

    # Another worker may still have an older plan, or an older memory of the manager.
    known: dict[str, Any] = {}

    def predicted() -> bool:
        known.update(shown())
        return bool(known["t_predicted"]) and known["benefit"] == pytest.approx(4.0)

    wait_until(predicted, SOON, "the benefit and the prediction")
    assert (known["t_miss"], known["t_hit"], known["hit_share"]) == (pytest.approx(1.0), pytest.approx(0.25), 1.0)
    assert known["t_hit"] <= known["t_with_more"] <= known["t_predicted"] <= known["t_miss"]

    def told() -> float:
        return float(ask(running, "GET", "/v1/plan").json["jobs"][data.job]["t_predicted"] or 0.0)

    wait_until(lambda: told() == pytest.approx(known["t_predicted"]), SOON, "the prediction in the plan")
    history = [
        event for event in ask(running, "GET", "/v1/plan").json["history"] if event.get("dataset") == data.stock.id
    ]
    assert "allocated" in {event["what"] for event in history}
    assert planned(running, data)["inputs"]["size"] == 100 * ITEM


def test_batches_of_a_job_follow_its_order(running: Running, data: Data, stocks: list[Stock]) -> None:
    """Rule: while a job may not use the cache, its batches have no hits and store nothing, and their headers say so."""
    data.stock = stocks[1]
    register(running, data, ranks=1, caching="off")
    wait_until(lambda: heartbeat(running, data).status == 200, SOON, "a heartbeat")

    def caching(query: str) -> str:
        return data.stock.ask(running, range(100), query).headers["x-larder-caching"]

    wait_until(lambda: {caching(f"job={data.job}") for _ in range(16)} == {"none"}, SOON, "the order in every worker")
    refused = decoded(range(100), data.stock.ask(running, range(100), f"job={data.job}").body)
    assert taken(refused) == data.stock.expected(range(100))
    assert not any(ItemFlag(flags) & ItemFlag.HIT for flags in refused.flags)


def test_a_job_that_never_wants_the_cache(running: Running, data: Data) -> None:
    """Rule: caching=off is obeyed from the first directive on."""
    assert register(running, data, caching="off").json["directives"]["cache"] is False
    assert register(running, data, caching="off").json["directives"]["caching"] == "none"


def test_a_client_of_an_earlier_version_gets_the_order_that_it_proposes(running: Running, data: Data) -> None:
    """Rule: the order of an epoch is the proposed one, as nothing depends on it any more."""
    register(running, data)
    proposal = [*range(3, 10), *range(3)]
    assert post(running, f"/v1/jobs/{data.job}/epochs/3", {"order": proposal}).json["order"] == proposal


# --- what is refused


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"job": ""}, "job"),
        ({"job": "a/b"}, "job"),
        ({"job": "x" * 129}, "job"),
        ({"job": "naïve"}, "job"),
        ({"job": "a\nb"}, "job"),
        ({"job": 7}, "job"),
        ({"dataset": ""}, "dataset"),
        ({"gpus": 0}, "gpus"),
        ({"gpus": -4}, "gpus"),
        ({"gpus": 65_537}, "gpus"),
        ({"gpus": 1e300}, "gpus"),
        ({"gpus": "4"}, "gpus"),
        ({"gpus": True}, "gpus"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2**20 + 1}, "batch_size"),
        ({"ranks": 0}, "ranks"),
        ({"ranks": 65_537}, "ranks"),
        ({"caching": "perhaps"}, "caching"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_registration_that_is_wrong_is_refused_by_the_field(
    running: Running, data: Data, change: dict[str, Any], field: str
) -> None:
    """Rule: absurd numbers, strange names and unknown fields are refused by the field's name, and counted; no job comes of it."""
    before = running.metric("larder_job_requests_total", kind="register", result="refused")
    reply = register(running, data, **change)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert field in reply.json["detail"]
    assert running.metric("larder_job_requests_total", kind="register", result="refused") == before + 1
    assert data.job not in [one["job"] for one in ask(running, "GET", "/v1/jobs").json["jobs"]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rank": -1}, "rank"),
        ({"rank": 2}, "rank"),
        ({"rank": 2**40}, "rank"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 2**31}, "epoch"),
        ({"upcoming": [0, -1]}, "upcoming.1"),
        ({"upcoming": [1000], "epoch_left": 1}, "upcoming.0"),
        ({"upcoming": list(range(1000)) * 2}, "upcoming"),
        ({"epoch_left": -1}, "epoch_left"),
        ({"phases": {"lunch": times(1, 1.0)}}, "phases.lunch"),
        ({"phases": {"steady": times(1, -1.0)}}, "phases.steady.seconds"),
        ({"phases": {"steady": times(-1, 1.0)}}, "phases.steady.steps"),
        ({"phases": {"steady": times(1, 1e11)}}, "phases.steady.seconds"),
        ({"phases": {"steady": {**times(1, 1.0), "waited": -0.1}}}, "phases.steady.waited"),
        ({"phases": {"steady": times(1, 1.0, 11)}}, "phases.steady.hits"),
        ({"phases": {"steady": {"steps": 1}}}, "phases.steady.seconds"),
        ({"queue": -1}, "queue"),
        ({"mood": "good"}, "mood"),
    ],
)
def test_a_heartbeat_that_is_wrong_is_refused_by_the_field(
    running: Running, data: Data, change: dict[str, Any], field: str
) -> None:
    """Rule: negative times, impossible ranks and chunks, and contradictions are refused, counted, and change nothing."""
    register(running, data)
    heartbeat(running, data)
    before = ask(running, "GET", f"/v1/jobs/{data.job}").json
    counted = running.metric("larder_job_requests_total", kind="heartbeat", result="refused")
    reply = heartbeat(running, data, **change)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert field in reply.json["detail"]
    assert running.metric("larder_job_requests_total", kind="heartbeat", result="refused") == counted + 1
    after = ask(running, "GET", f"/v1/jobs/{data.job}").json
    # Ranks fall silent, and the plan may change, while the test waits for the processor.
    assert after["ranks_heard"] <= before["ranks_heard"]
    for changing in ("silent", "ranks_heard", "phase", "cache", "benefit", "t_predicted", "t_with_more"):
        before.pop(changing)
        after.pop(changing)
    assert after == before


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"rank": NaN}', b"\xff\xfe", b'{"seconds": Infinity}'])
def test_what_is_no_json_is_refused(running: Running, data: Data, text: bytes) -> None:
    """Rule: a body that is not a JSON object of the right form is InvalidRequest at each address that takes one."""
    register(running, data)
    for path in ("/v1/jobs", f"/v1/jobs/{data.job}/heartbeat", f"/v1/jobs/{data.job}/epochs/0"):
        reply = post(running, path, text)
        assert (reply.status, reply.code) == (400, "InvalidRequest")


def test_numbers_that_are_none_are_refused(running: Running, data: Data) -> None:
    """Rule: NaN and infinity are refused as times."""
    register(running, data)
    for word in ("NaN", "Infinity", "1e400"):
        text = json.dumps(beat(phases={"steady": times(1, 1.0)})).replace('"seconds": 1.0', f'"seconds": {word}')
        reply = post(running, f"/v1/jobs/{data.job}/heartbeat", text.encode())
        assert (reply.status, reply.code) == (400, "InvalidRequest"), word


def test_a_body_that_is_too_long_is_refused(running: Running, data: Data) -> None:
    """Rule: a heartbeat has at most 64 KiB."""
    register(running, data)
    reply = post(running, f"/v1/jobs/{data.job}/heartbeat", b" " * 65_537)
    assert (reply.status, reply.code) == (413, "TooLarge")


@pytest.mark.parametrize("order", [[], [0, 0], [1, 2], [0, 2], [-1, 0], list(range(1001)), "abc", None])
def test_an_order_that_is_none_is_refused(running: Running, data: Data, order: Any) -> None:
    """Rule: a proposal has each chunk from 0 on once."""
    register(running, data)
    reply = post(running, f"/v1/jobs/{data.job}/epochs/0", {"order": order})
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert "order" in reply.json["detail"]


@pytest.mark.parametrize("epoch", ["-1", "x", "2147483648", "1.5"])
def test_an_epoch_that_is_none_is_refused(running: Running, data: Data, epoch: str) -> None:
    """Rule: epochs are numbers from 0."""
    register(running, data)
    reply = post(running, f"/v1/jobs/{data.job}/epochs/{epoch}", {"order": [0]})
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert "epoch" in reply.json["detail"]


def test_other_tenants_jobs_are_unknown(running: Running, data: Data) -> None:
    """Rule: another tenant can neither see a job, nor speak for it, nor end it; its dataset is unknown to him too."""
    register(running, data)
    for reply in (
        ask(running, "GET", f"/v1/jobs/{data.job}", key=GWB),
        ask(running, "DELETE", f"/v1/jobs/{data.job}", key=GWB),
        heartbeat(running, data, GWB),
        post(running, f"/v1/jobs/{data.job}/epochs/0", {"order": [0]}, GWB),
    ):
        assert (reply.status, reply.code) == (404, "UnknownJob")
    assert register(running, data, GWB).code == "UnknownDataset"
    assert ask(running, "GET", "/v1/jobs", key=GWB).json == {"jobs": [], "next": None}
    wait_until(lambda: bool(planned(running, data)), SOON, "a plan")
    theirs = ask(running, "GET", "/v1/plan", key=GWB).json
    assert (theirs["datasets"], theirs["jobs"], theirs["history"]) == ({}, {}, [])
    assert ask(running, "GET", f"/v1/jobs/{data.job}").status == 200


def test_a_name_with_another_dataset_is_a_conflict(running: Running, data: Data, stocks: list[Stock]) -> None:
    """Rule: a job's name is bound to one dataset while the job exists; the refusal has a remedy."""
    register(running, data)
    reply = post(running, "/v1/jobs", job(data, dataset=stocks[1].name))
    assert (reply.status, reply.code) == (409, "JobConflict")
    assert "dataset" in reply.json["detail"]
    assert ask(running, "GET", f"/v1/jobs/{data.job}").json["dataset"] == data.stock.id


def test_addresses_and_methods(running: Running) -> None:
    """Rule: other methods get 405 with Allow; unexpected parameters and bodies are refused."""
    wrong = ask(running, "PUT", "/v1/jobs", b"{}")
    assert (wrong.status, wrong.code, wrong.headers["allow"]) == (405, "MethodNotAllowed", "GET, POST")
    assert ask(running, "GET", "/v1/jobs?limit=0").code == "InvalidRequest"
    assert ask(running, "GET", "/v1/plan", b"hello").code == "InvalidRequest"
    assert ask(running, "GET", "/v1/plan", key=None).status == 403
    assert ask(running, "POST", "/v1/jobs", b"{}", key=None).status == 403


def test_the_description_has_every_address(running: Running) -> None:
    """Rule: the OpenAPI document has all addresses of jobs, with requests and answers."""
    document = ask(running, "GET", "/openapi.json", key=None).json
    methods = {path: sorted(entry) for path, entry in document["paths"].items() if re.match("/v1/(?:jobs|plan)", path)}
    assert methods == {
        "/v1/jobs": ["get", "post"],
        "/v1/jobs/{job}": ["delete", "get"],
        "/v1/jobs/{job}/heartbeat": ["post"],
        "/v1/jobs/{job}/epochs/{epoch}": ["post"],
        "/v1/jobs/{job}/importance": ["put"],
        "/v1/plan": ["get"],
    }
    taken = document["paths"]["/v1/jobs/{job}/heartbeat"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert {"rank", "epoch", "upcoming", "epoch_left", "phases", "queue", "pipeline", "profile", "finished"} == taken[
        "properties"
    ].keys()
    assert (
        set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
        <= document["components"]["schemas"].keys()
    )


class Elsewhere:
    """The jobs and the plan of a fleet, on a node to which the job's registration is still being copied."""

    def __init__(self) -> None:
        self.plan = Plan()

    async def beat(self, key: str, beat: Beat, *reports: str) -> HeardJob:
        """Take it."""
        return HeardJob(JobRecord("t", "j", "1" * 64, "name", 1, 1, 1, "auto", "default", "key", 1, 1, "auto"))

    def dataset(self, dataset: str) -> None:
        """Return no plan yet."""

    def job(self, tenant: str, job: str) -> None:
        """Return no plan yet."""

    async def find(self, tenant: str, dataset: str) -> None:
        """Never return."""
        await asyncio.Event().wait()


async def test_a_heartbeat_does_not_wait_for_a_registration() -> None:
    """Rule: while the registration is copied from another node, a rank gets the directives that do not depend on it."""
    fleet = cast("Any", Elsewhere())
    parts = JobParts(fleet, fleet, fleet, Planned(lambda: Plan(), lambda: 1), fleet.find, 1.0, Overrides)
    service = JobService(parts)
    principal = Principal("key", "t", OriginIdentity("default", "key"))
    async with asyncio.timeout(15):
        taken = await service.beat(principal, "j", Heartbeat(rank=0, epoch=0, upcoming=[], epoch_left=0))
    assert taken.directives.cache
