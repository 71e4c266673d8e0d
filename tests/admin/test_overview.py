"""The zone on one page: numbers that are the metrics', from whichever gateway, while nodes and Redis come and go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rig.batches import bytes_of, stock
from rig.gateways import Running
from rig.v1 import send
from rig.world import content, eventually
from tests.admin.operations_world import READ_TOKEN, Zone, admin, get, zone


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes."""
    with zone(tmp_path_factory.mktemp("overview")) as made:
        made.heard()
        yield made


def metrics_of(world: Zone) -> dict[str, int]:
    """The expected totals of the overview."""
    cached = [world.metric("larder_sent_bytes_total", outcome=outcome) for outcome in ("HIT", "STALE")]
    hits = [world.metric("larder_requests_total", outcome=outcome) for outcome in ("HIT", "STALE")]
    return {
        "requests": int(world.metric("larder_requests_total")),
        "hits": int(sum(hits)),
        "sent_bytes": int(world.metric("larder_sent_bytes_total") + world.metric("larder_batch_bytes_total")),
        "origin_bytes": int(world.metric("larder_origin_received_bytes_total")),
        "saved_bytes": int(sum(cached) + world.metric("larder_batch_bytes_total", result="hit")),
        "batch_items": int(world.metric("larder_batch_items_total")),
        "batch_hits": int(world.metric("larder_batch_items_total", result="hit")),
    }


def test_totals_are_the_metrics_and_the_same_from_every_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Rule: after a known workload each gateway's overview has the sums of all nodes' metrics; rates and history follow."""
    with zone(tmp_path_factory.mktemp("totals")) as world:
        world.heard()
        paths = [f"/bucket/overview/{number}" for number in range(6)]
        for path in paths:
            world.origin.put(path, content(10_000, path))
        for _ in range(2):
            for number, path in enumerate(paths):
                world.read(number % 2, path)
        wanted = metrics_of(world)
        assert wanted["requests"] == 12
        assert wanted["saved_bytes"] == 60_000
        for node in world.nodes:
            shown = eventually(
                lambda node=node: get(node, "/overview"),
                # Counters and the bytes of each node come with different heartbeats.
                lambda page: page["total"] == wanted and sum(each["bytes"] for each in page["nodes"]) == 60_000,
                f"totals of {wanted}, with 60,000 cached bytes",
            )
            assert shown["now"]["requests_per_second"] > 0
            assert shown["now"]["hit_ratio"] == pytest.approx(0.5)
            assert [each["id"] for each in shown["nodes"]] == ["node-0", "node-1"]
            assert {each["state"] for each in shown["nodes"]} == {"READY"}
            past = get(node, "/overview/history?hours=1")
            assert sum(point["saved_bytes"] for point in past["points"]) == 60_000
            assert len(past["points"]) * past["step_seconds"] == 3600


def test_answers_have_statuses_and_percentiles(world: Zone) -> None:
    """Rule: every gateway reports the same last minute: answers by status, and seconds by cache outcome."""
    world.origin.put("/bucket/answered", content(1000, "answered"))
    for _ in range(3):
        world.read(0, "/bucket/answered")
    for node in world.nodes:
        answers = eventually(
            lambda node=node: get(node, "/overview")["answers"],
            lambda found: {"", "HIT", "MISS"} <= {each["outcome"] for each in found["latency"]},
            "percentiles of hits and misses",
        )
        assert answers["statuses"]["2xx"] > 0
        for each in answers["latency"]:
            assert each["requests_per_second"] > 0
            assert 0 < each["p50"] <= each["p95"] <= each["p99"]


def test_traffic_names_tenant_bucket_and_missed_prefix(world: Zone) -> None:
    """Rule: every gateway reports the last minute's reads by tenant and bucket, and the missed prefixes with reasons."""
    for number in range(4):
        world.origin.put(f"/bucket/missed/here/{number}/deep", content(1000, f"missed-{number}"))
        world.read(number % 2, f"/bucket/missed/here/{number}/deep")
    for node in world.nodes:
        found = eventually(
            lambda node=node: get(node, "/traffic"),
            lambda page: (
                [
                    row["requests"]
                    for row in page["misses"]
                    if (row["prefix"], row["reason"]) == ("missed/here/", "cold")
                ]
                == [4]
            ),
            "the misses of all nodes",
        )
        assert found["miss_seconds"] > 0
        (row,) = [row for row in found["misses"] if row["prefix"] == "missed/here/"]
        assert (row["bucket"], row["bytes"]) == ("bucket", 4000)
        assert row["meaning"]
        assert row["change"]


def test_traffic_is_that_of_the_last_minute(world: Zone) -> None:
    """Rule: every gateway reports the current read rates by tenant and bucket."""
    world.origin.put("/bucket/busy", content(1000, "busy"))

    def bucket(node: Running) -> list[dict[str, Any]]:
        world.read(0, "/bucket/busy")
        return [each for each in get(node, "/overview")["traffic"]["buckets"] if each["bucket"] == "bucket"]

    for node in world.nodes:
        (read,) = eventually(
            partial(bucket, node),
            lambda found: [each["sent_bytes_per_second"] > 0 for each in found] == [True],
            "traffic of the bucket",
        )
        assert read["requests_per_second"] > 0
        assert 0 <= read["hit_ratio"] <= 1


def test_metrics_name_tenants_buckets_and_origins_to_those_with_a_token(world: Zone) -> None:
    """Rule: a scraper with a token that may read sees them; one without, or with a wrong one, sees everything else."""
    world.origin.put("/bucket/named", content(1000, "named"))
    world.read(0, "/bucket/named")
    node = world.nodes[0]

    def scraped(token: str) -> str:
        return send(node, "GET", "/metrics", b"", {"Authorization": f"Bearer {token}"}).body.decode()

    named = eventually(lambda: scraped(READ_TOKEN), lambda text: 'bucket="bucket"' in text, "the bucket's name")
    assert 'larder_origin_answer_seconds_count{origin="default"}' in named
    for text in (scraped("wrong"), send(node, "GET", "/metrics", b"", {}).body.decode()):
        assert "larder_requests_total{" in text
        assert "larder_bucket_" not in text
        assert "larder_origin_answer_" not in text


def test_requests_of_all_gateways_are_followed_live(world: Zone) -> None:
    """Rule: a follower gets the matching requests of all gateways, each once, from any gateway."""
    world.origin.put("/bucket/live/seen", content(1000, "seen"))
    wanted = "bucket=bucket&prefix=live/&status=2xx"
    follower = get(world.nodes[0], f"/requests?{wanted}")["follower"]
    seen: dict[str, dict[str, Any]] = {}

    def asked() -> set[str]:
        for number, node in enumerate(world.nodes):
            world.read(number, "/bucket/live/seen")
            found = get(node, f"/requests?{wanted}&follower={follower}")
            assert not seen.keys() & {each["request_id"] for each in found["requests"]}
            seen.update({each["request_id"]: each for each in found["requests"]})
        return {each["node"] for each in seen.values()}

    eventually(asked, lambda nodes: nodes == {"node-0", "node-1"}, "requests of both nodes")
    for each in seen.values():
        assert (each["bucket"], each["key"], each["method"], each["bytes"]) == ("bucket", "live/seen", "GET", 1000)
        assert each["seconds"] > 0
    for mistake in ("status=9xx", "outcome=LOST", "follower=me", "slower=-1"):
        assert admin(world.nodes[0], "GET", f"/requests?{mistake}").status == 400, mistake


def test_origins_are_shown_with_their_latency(world: Zone) -> None:
    """Rule: every gateway reports for each origin whether nodes reach it, and its latency of the last minute."""
    serial = itertools.count()

    def seen(node: Running) -> list[dict[str, Any]]:
        path = f"/bucket/from-the-origin/{next(serial)}"
        world.origin.put(path, content(1000, path))
        world.read(0, path)
        found: list[dict[str, Any]] = get(node, "/overview")["origins"]
        return found

    for node in world.nodes:
        (origin,) = eventually(
            partial(seen, node),
            lambda found: len(found) == 1 and found[0]["requests_per_second"] > 0,
            "answers of the origin",
        )
        assert (origin["name"], origin["state"], origin["lost_by"]) == ("default", "answers", [])
        assert 0 < origin["p50"] <= origin["p95"] <= origin["p99"]


def test_what_a_job_reads_in_batches_is_shown(world: Zone, tmp_path: Path) -> None:
    """Rule: items of batches have a rate beside the one of requests, now and in the history; the percentiles of all answers
    count batches."""
    made = stock(world.origin.s3, tmp_path, "trained", bytes_of(50, 500, "trained"))
    for node in world.nodes:
        made.register(node)
        made.read(node, range(50))
    for node in world.nodes:
        eventually(
            lambda node=node: get(node, "/overview")["now"],
            lambda now: now["batch_items_per_second"] > 0,
            "the rate of batch items",
        )
        past = get(node, "/overview/history?hours=1")
        items = sum(point["batch_items_per_second"] * past["step_seconds"] for point in past["points"])
        assert items > 0
        answers = eventually(
            lambda node=node: get(node, "/overview")["answers"],
            lambda found: "BATCH" in {each["outcome"] for each in found["latency"]},
            "percentiles of batches",
        )
        of_all, *by_outcome = answers["latency"]
        rates = [each["requests_per_second"] for each in by_outcome]
        assert of_all["requests_per_second"] == pytest.approx(sum(rates), abs=0.01)
        assert 0 < of_all["p50"] <= of_all["p95"]


def test_the_read_token_shows_everything_and_changes_nothing(world: Zone) -> None:
    """Rule: with the read token every list is shown, and every change refused."""
    node = world.nodes[0]
    for path in (
        "/overview",
        "/overview/history",
        "/traffic",
        "/requests",
        "/nodes",
        "/datasets",
        "/jobs",
        "/plan",
        "/warmups",
        "/verifications",
        "/problems",
    ):
        assert admin(node, "GET", path, token=READ_TOKEN).status == 200, path
    for path in ("/nodes/node-0/drain", "/purge", "/warmups", "/verifications"):
        reply = admin(node, "POST", path, {}, token=READ_TOKEN)
        assert (reply.status, reply.code) == (403, "ReadOnlyToken")
    assert admin(node, "GET", "/overview", token="another").status == 401


def test_history_is_bounded(world: Zone) -> None:
    """Rule: two days have at most 720 points; more hours, or none, are refused with the parameter's name."""
    past = get(world.nodes[0], "/overview/history?hours=48")
    assert len(past["points"]) == 720
    assert past["step_seconds"] == 240
    for hours in ("0", "49", "x"):
        reply = admin(world.nodes[0], "GET", f"/overview/history?hours={hours}")
        assert (reply.status, reply.code) == (400, "InvalidRequest")
        assert "hours" in reply.json["detail"]


def test_with_redis_lost_what_was_known_is_shown(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rule: without Redis the overview has the last known facts, lists the problem, and recovers with Redis."""
    with zone(tmp_path_factory.mktemp("lost"), fleet={"expire": "60s"}) as world:
        world.heard()
        world.redis.kill()
        page = eventually(lambda: get(world.nodes[0], "/overview"), lambda page: page["problems"], "the problem")
        assert page["problems"][0]["severity"] == "error"
        assert "Redis" in page["problems"][0]["what"]
        assert [node["id"] for node in page["nodes"]] == ["node-0", "node-1"]
        assert admin(world.nodes[0], "GET", "/nodes").headers["x-larder-stale"] == "redis"
        world.redis.start()
        eventually(lambda: get(world.nodes[0], "/overview")["problems"], lambda found: not found, "no problem any more")


def test_what_is_wrong_with_a_node_is_said_and_who_stops_is_not_missed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Rule: a failing origin and an unreadable configuration are problems of their node, with remedies, until repaired; a stopped
    node's problems disappear."""
    with zone(tmp_path_factory.mktemp("troubles")) as world:
        world.heard()
        config = world.nodes[1].config
        good = config.read_text()
        config.write_text(good + "\n[nonsense]\n")
        with world.origin.away():
            for number in range(8):
                assert _status(world, f"/bucket/away/{number}") >= 500
            found = eventually(
                lambda: {(each["node"], each["severity"]): each for each in get(world.nodes[1], "/problems")["items"]},
                lambda items: len(items) == 2,
                "both troubles",
            )
        assert all(each["remedy"] for each in found.values())
        assert "origin" in found["node-0", "error"]["what"]
        assert "nonsense" in found["node-1", "error"]["what"]
        config.write_text(good)
        eventually(
            lambda: [each["node"] for each in get(world.nodes[0], "/problems")["items"]],
            lambda nodes: "node-1" not in nodes,
            "the configuration to be read",
        )
        world.nodes[1].stop()
        assert world.redis.ask("HKEYS", "larder:default:status") == ["node-0"]


def _status(world: Zone, path: str) -> int:
    connection = world.nodes[0].connection()
    signed = (
        world.nodes[0]
        .client()
        .generate_presigned_url("get_object", Params={"Bucket": path.split("/")[1], "Key": path.split("/", 2)[2]})
    )
    connection.request("GET", signed.removeprefix(world.nodes[0].endpoint))
    status: int = connection.getresponse().status
    connection.close()
    return status


def test_a_problem_is_muted_and_its_mute_is_audited(world: Zone) -> None:
    """Rule: only a problem that there is can be muted; a mute of none is refused, and so is an end of none."""
    refused = admin(world.nodes[0], "PUT", "/problems/gone%20x/mute", {"seconds": 3600})
    assert (refused.status, refused.json["code"]) == (404, "NotFound")
    assert admin(world.nodes[0], "PUT", "/problems/gone%20x/mute", {"seconds": 3600}, READ_TOKEN).status == 403
    assert admin(world.nodes[0], "DELETE", "/problems/gone%20x/mute").status == 404
    assert isinstance(get(world.nodes[1], "/problems/past")["items"], list)


def test_a_bucket_and_a_node_have_trends(world: Zone) -> None:
    """Rule: what was noted within the period is shown by every gateway, oldest first; an unknown node is refused, and a job
    without notes has none."""
    seconds = int(world.redis.ask("TIME")[0])
    for ago, count in ((90_000, 1), (300, 2), (180, 3)):
        world.redis.ask(
            "RPUSH", "larder:default:trends:bucket:noted", f'{seconds - ago} {{"requests_per_second": {count}}}'
        )
    for node in world.nodes:
        points = get(node, "/trends/bucket/noted")["points"]
        assert [point["figures"] for point in points] == [{"requests_per_second": 2}, {"requests_per_second": 3}]
        assert get(node, "/trends/node/node-0")["kind"] == "node"
        assert get(node, "/trends/job/a/b")["points"] == []
    assert admin(world.nodes[0], "GET", "/trends/node/nobody").status == 404
