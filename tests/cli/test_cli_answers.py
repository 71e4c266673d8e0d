"""``larder-gateway`` with answers that a healthy gateway rarely gives."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any
from urllib.parse import quote

import pytest

from gateway.cli import main
from tests.cli.fake_admin import OVERVIEW, Asked, problem

NODE: dict[str, Any] = {"node": "n1", "objects": 3, "bytes": 3000, "failure": ""}
CHECKED: dict[str, Any] = {
    "node": "n1", "state": "done", "share": 1.0, "blobs": 3, "bytes": 3000, "corrupt": 0, "missing": 0, "orphans": 0,
    "examples": [], "failure": "",
}  # fmt: skip


def paged(*items: dict[str, Any], size: int = 2) -> Any:
    """Answers a list in pages."""

    def page(asked: Asked) -> tuple[int, dict[str, Any]]:
        first = int(asked.query.get("cursor", "0"))
        last = first + min(size, int(asked.query["limit"]))
        return 200, {"items": list(items[first:last]), "next": str(last) if last < len(items) else None}

    return page


def test_lists_are_read_to_their_end(admin, operator):
    """Rule: a list has all pages, or the requested number of items."""
    admin.answers["GET nodes"] = paged(*({"id": f"n{number}"} for number in range(5)))
    assert [node["id"] for node in operator("nodes", "--json").json["items"]] == ["n0", "n1", "n2", "n3", "n4"]
    assert len(operator("nodes", "--json", "--limit", "3").json["items"]) == 3


def test_a_purge_that_a_node_missed(admin, operator):
    """Rule: a node that could not forget is named with the reason, and makes it a problem."""
    nodes = [NODE, {"node": "n2", "objects": 0, "bytes": 0, "failure": "does not answer"}]
    admin.answers["POST purge"] = {"objects": 3, "bytes": 3000, "complete": False, "nodes": nodes}
    ran = operator("purge", "b/p", "--yes")
    assert ran.status == 1
    assert ran.out.splitlines()[2].split(maxsplit=4) == ["n2", "0", "0", "B", "does not answer"]
    assert admin.asked[-1].body == {"bucket": "b", "prefix": "p", "dry_run": False}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"corrupt": 1, "examples": ["ab/\x1bcd"]}, "n1: ab/\\x1bcd"),
        ({"state": "failed", "failure": "the node is gone"}, "n1: the node is gone"),
    ],
)
def test_a_verification_that_finds_something(admin, operator, damage, said):
    """Rule: damage, and a node that could not look, end it with 1 and are named."""
    name = "cd" * 16
    admin.answers["POST verifications"] = lambda _: (202, {"id": name, "nodes": []})
    admin.answers[f"GET verifications/{name}"] = {"id": name, "nodes": [{**CHECKED, **damage}]}
    ran = operator("verify", "--remote")
    assert ran.status == 1
    assert ran.out.splitlines()[-1] == said


def test_one_node_is_verified(admin, operator):
    """Rule: --node selects the node to verify; without it all are verified."""
    name = "cd" * 16
    admin.answers["POST verifications"] = lambda _: (202, {"id": name, "nodes": []})
    admin.answers[f"GET verifications/{name}"] = {"id": name, "nodes": [CHECKED]}
    assert operator("verify", "--remote", "--node", "n1", "--node", "n3").status == 0
    assert operator("verify", "--remote").status == 0
    assert [asked.body for asked in admin.asked if asked.method == "POST"] == [{"nodes": ["n1", "n3"]}, {}]


@pytest.mark.parametrize(
    "words", [("--node", "n1"), ("--watch", "x"), ("--remote", "--repair"), ("--remote", "--config", "larder.toml")]
)
def test_verifying_here_and_there_is_told_apart(operator, words):
    """Rule: options of one way are wrong usage of the other."""
    ran = operator("verify", *words)
    assert ran.status == 2
    assert "--remote" in ran.err


def test_a_dataset_that_is_several(admin, operator):
    """Rule: a name of several datasets is ambiguous; the message has their ids."""
    admin.answers["GET datasets"] = paged(
        {"id": "aa" * 6, "names": ["train"]}, {"id": "bb" * 6, "names": ["train", "other"]}
    )
    ran = operator("datasets", "pin", "train")
    assert ran.status == 1
    assert "aaaaaaaaaaaa, bbbbbbbbbbbb" in ran.err
    admin.answers["GET datasets/bbbbbbbbbbbb"] = {"override": {"mode": None, "quota": None, "etag": '"0"'}}
    admin.answers["PUT datasets/bbbbbbbbbbbb/override"] = {"mode": "pin"}
    assert operator("datasets", "pin", "other").status == 0
    assert operator("datasets", "pin", "bb" * 32).status == 0


def test_a_job_that_several_tenants_have(admin, operator):
    """Rule: the user must choose one, and the message has the commands."""
    admin.answers["GET jobs"] = paged({"tenant": "a", "job": "run"}, {"tenant": "b's", "job": "run"})
    ran = operator("jobs", "remove", "run")
    assert ran.status == 1
    assert "larder-gateway jobs remove 'b'\"'\"'s/run'" in ran.err
    admin.answers["DELETE jobs/b%27s/run"] = lambda _: (204, {})
    assert operator("jobs", "remove", "b's/run").out == "b's/run is forgotten\n"


@pytest.mark.parametrize(("job", "said"), [("vision/", "must look like"), ("", "must look like")])
def test_no_job(operator, job, said):
    """Rule: an impossible job id is wrong usage."""
    ran = operator("jobs", "remove", job)
    assert ran.status == 2
    assert said in ran.err


def test_a_limit_of_less_than_one_request_is_none_of_zero(admin, operator):
    """Rule: limits are listed as they are, without rounding."""
    rates = {"slow": 0.4, "fast": 2000.0, "free": 0.0}
    admin.answers["GET tenants"] = paged(*({"name": name, "requests_per_second": rate} for name, rate in rates.items()))
    listed = operator("tenants", "list").out
    assert "0.4 requests/s" in listed
    assert "2,000 requests/s" in listed
    assert listed.count("requests/s") == 2


def test_rules_that_somebody_else_changed(admin, operator, tmp_path):
    """Rule: rules are replaced only if their etag is unchanged; another operator's change is not overwritten."""
    file = tmp_path / "rules.toml"
    file.write_text('[[rules]]\nmatch = "b/**"\n')
    admin.answers["GET rules"] = {"items": [], "etag": '"17"'}
    admin.answers["PUT rules"] = lambda _: problem(412, "PreconditionFailed", "It was changed meanwhile.")
    ran = operator("rules", "replace", str(file))
    assert ran.status == 1
    assert "It was changed meanwhile. (PreconditionFailed)" in ran.err
    assert admin.asked[-1].headers["if-match"] == '"17"'
    assert admin.asked[-1].body == {"items": [{"match": "b/**"}]}


def test_the_audit_log_says_what_is_different(admin, operator):
    """Rule: a change lists the fields that differ; a creation or removal lists its fields; empty ones are left out."""
    common = {"at": "2026-11-20T20:00:00Z", "actor": "admin", "address": "10.0.0.9", "target": "k", "request_id": "r"}
    admin.answers["GET audit"] = paged(
        {**common, "action": "tenants.change", "before": {"enabled": True, "n": "a"}, "after": {"enabled": False, "n": "a"}},
        {**common, "action": "credentials.create", "before": None, "after": {"tenant": "a", "expires": "", "allow": ["b/**"]}},
        {**common, "action": "tenants.remove", "before": {"enabled": True}, "after": None},
        {**common, "action": "rules.replace", "before": {"items": []}, "after": {"items": [{"match": "b/**", "cache": True}]}},
    )  # fmt: skip
    lines = operator("audit", "--action", "x").out.splitlines()
    assert [line.split("  ")[-1].strip() for line in lines] == [
        "HOW",
        "enabled: yes -> no",
        "tenant a, allow b/**",
        "was enabled yes",
        "items: - -> b/**",
    ]
    assert admin.asked[0].query["action"] == "x"


def test_the_reader_that_is_meant(admin, operator):
    """Rule: explain uses the only key in force; with several, one must be named."""
    keys = [
        {"access_key_id": "A", "revoked": False, "problem": ""},
        {"access_key_id": "B", "revoked": True, "problem": ""},
    ]
    admin.answers["GET credentials"] = paged(*keys)
    admin.answers["GET explain"] = {
        "outcome": "MISS",
        "reason": "cold",
        "explanation": "why",
        "change": "",
        "known": False,
    }
    assert "MISS cold" in operator("explain", "b/k").out
    assert admin.asked[-1].query == {"bucket": "b", "key": "k", "access_key_id": "A"}
    admin.answers["GET credentials"] = paged(keys[0], {**keys[0], "access_key_id": "C"})
    ran = operator("explain", "b/k")
    assert ran.status == 2
    assert "2 are in force" in ran.err


def test_parts_of_an_object_are_listed(admin, operator):
    """Rule: explain names the bytes of the parts that are stored, and says when there are more than it lists."""
    parts = [{"start": 100, "bytes": 200_000}, {"start": 700_000, "bytes": 300_000}]
    answer = {"known": True, "parts": 2, "part_bytes": 500_000, "first_parts": parts}
    admin.answers["GET explain"] = answer
    said = "bytes 100-200099, 700000-999999"
    assert f"as they were read: {said}\n" in operator("explain", "b/k", "--as", "A").out
    admin.answers["GET explain"] = {**answer, "parts": 3}
    assert f"{said}, ...\n" in operator("explain", "b/k", "--as", "A").out


@pytest.mark.parametrize(
    "words", [("explain", "b"), ("explain", "--as", "A"), ("explain", "b/k", "--node", "n"), ("rules", "check", "b")]
)
def test_objects_that_are_none(operator, words):
    """Rule: a bucket without a key, and contradictory options, are wrong usage."""
    assert operator(*words).status == 2


@pytest.mark.parametrize("content", [None, "", "  \n"])
def test_a_secret_that_is_not_there(operator, tmp_path, content):
    """Rule: a file without a secret is wrong usage; nothing is created."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    ran = operator("origins", "create", "o", "--address", "http://x", "--secret-file", str(file))
    assert ran.status == 2
    assert "--secret-file" in ran.err


def test_secrets_that_a_shell_would_take_apart(admin, operator):
    """Rule: output for a shell is quoted."""
    admin.answers["POST credentials"] = lambda _: (201, {"access_key_id": "a b", "secret_access_key": "$(x)'"})
    assert operator("credentials", "create").out == "AWS_ACCESS_KEY_ID='a b'\nAWS_SECRET_ACCESS_KEY='$(x)'\"'\"''\n"


STREAM: dict[str, Any] = {
    "name": "lake/train/", "pattern": "random", "accesses": 400, "hits": 300, "misses": 100, "bytes": 4_000_000,
    "idle_seconds": 2.0, "nodes": ["n1"], "pool": None,
    "evidence": {
        "window": 100, "listed": False, "count": 300, "rho": 0.05, "statistic": 0.08, "threshold": 0.161, "repeats": 1,
        "most_repeats": 30, "population": 310, "unevenness": 0.4,
    },
}  # fmt: skip
POOL = {"name": "stream:lake/train/", "order": "uniform", "bytes": 3_000_000, "target": 4_000_000, "blobs": 3}


def test_streams_say_what_was_recognised_and_what_is_held(admin, operator):
    """Rule: the list has pattern, hit ratio and order; one stream has the numbers that its pattern follows from."""
    held = {**STREAM, "pool": POOL, "ahead": {"loaded": 50, "used": 30, "wasted": 10, "accuracy": 0.75}}
    new = {**STREAM, "name": "lake/new/", "pattern": None, "evidence": None, "accesses": 0, "hits": 0}
    admin.answers["GET streams"] = {"items": [held, new], "next": None}
    admin.answers["GET streams/lake%2Ftrain%2F"], admin.answers["GET streams/lake%2Fnew%2F"] = held, new
    first, second = operator("streams").out.splitlines()[-2:]
    assert " ".join(first.split()).startswith("lake/train/ random 400 75.0% 4.0 MB uniform 3.0 MB 4.0 MB 2")
    assert second.split()[:3] == ["lake/new/", "-", "0"]
    assert second.split()[-2:] == ["-", "-"], "never read, so not idle since"
    shown = operator("streams", "show", "lake/train/").out
    assert "0.05 (sequential above 0.90)" in shown
    assert "stream:lake/train/, uniform: 3.0 MB of 4.0 MB" in shown
    assert "50, 75.0% of them read" in shown
    fresh = operator("streams", "show", "lake/new/").out
    assert "not recognised yet" in fresh
    assert "idle" not in fresh
    scan = {**STREAM["evidence"], "rho": 1.0, "statistic": 0.0, "threshold": 0.0}
    admin.answers["GET streams/lake%2Fnew%2F"] = {**STREAM, "name": "lake/new/", "evidence": scan}
    assert "skewed above" not in operator("streams", "show", "lake/new/").out
    for target, words in ((0, "ended"), (1, "paused")):
        admin.answers["GET streams/lake%2Ftrain%2F"] = {**STREAM, "pool": {**POOL, "target": target}}
        assert f"stream:lake/train/, uniform: 3.0 MB, {words}" in operator("streams", "show", "lake/train/").out
    assert operator("streams", "--json").json["items"] == [held, new]


def test_a_prefix_is_pinned_denied_space_and_left_to_the_plan(admin, operator):
    """Rule: ``pin`` sends the size; ``never`` and ``auto`` send none; the list and the prefix alone show what was decided."""
    admin.answers["PUT streams/lake%2Fval%2F/override"] = {**STREAM, "name": "lake/val/", "pinned": 40_000_000_000}
    assert "lake/val/: pin 40.0 GB" in operator("streams", "pin", "lake/val/", "40GB").out
    assert "lake/val/: never" in operator("streams", "never", "lake/val/").out
    assert "lake/val/: auto" in operator("streams", "auto", "lake/val/").out
    decided = [("pin", 40_000_000_000), ("never", None), (None, None)]
    assert [asked.body for asked in admin.asked] == [{"mode": mode, "bytes": size} for mode, size in decided]
    never = {**STREAM, "override": "never", "pinned": None, "pool": {**POOL, "target": 0}}
    pinned = {**STREAM, "override": "pin", "pinned": 40_000_000_000, "pool": POOL}
    admin.answers["GET streams"] = {"items": [never, pinned], "next": None}
    admin.answers["GET streams/lake%2Ftrain%2F"] = never
    first, second = operator("streams").out.splitlines()[-2:]
    assert "no space" in first
    assert first.split()[-1] == "never"
    assert second.split()[-3:] == ["pin", "40.0", "GB"]
    assert "stream:lake/train/, uniform: 3.0 MB, no space" in operator("streams", "show", "lake/train/").out


@pytest.mark.parametrize("name", ["lake/../..//%2e/", "../credentials", "lake/?a=b#c/", "lake/\n/"])
def test_a_stream_of_any_name_is_shown(admin, operator, name):
    """Rule: a name is one segment of the path and cannot address anything else."""
    admin.answers[f"GET streams/{quote(name, safe='')}"] = {**STREAM, "name": name}
    assert operator("streams", "show", name).out.splitlines()[0].split(maxsplit=1)[1] == name.replace("\n", "\\n")


def test_a_name_that_is_no_utf_8_is_asked_for(admin, operator):
    """Rule: a name of any bytes is sent to the gateway."""
    admin.answers["GET streams/lake%2F%FF"] = {**STREAM, "name": "lake/\ufffd"}
    assert "lake/\ufffd" in operator("streams", "show", "lake/\udcff").out


def test_a_problem_is_muted_for_a_while(admin, operator):
    """Rule: a problem is muted by its name, for 8 hours unless another time is given, and unmuted by the same name; status does
    not fail for a muted error."""
    muted = {"name": "gone b", "muted_until": "2026-03-02T22:30:00Z"}
    admin.answers["PUT problems/gone%20b/mute"] = muted
    admin.answers["DELETE problems/gone%20b/mute"] = lambda _: (204, {})
    assert operator("problems", "mute", "gone b").out.startswith("gone b is muted until 2026-03-0")
    assert operator("problems", "mute", "gone b", "--for", "1h").status == 0
    assert [asked.body for asked in admin.asked] == [{"seconds": 28_800.0}, {"seconds": 3600.0}]
    assert operator("problems", "unmute", "gone b").out == "gone b is counted again\n"
    problem = {**muted, "kind": "gone", "severity": "error", "what": "Node b is gone.", "since": "2026-03-02T14:30:00Z"}
    admin.answers["GET overview"] = {"problems": [problem]}
    assert operator("status").status == 0
    admin.answers["GET overview"] = {"problems": [problem | {"muted_until": None}]}
    assert operator("status").status == 1


RESULTS: dict[str, Any] = {
    "pool": "results:6f1c2a9b", "tenant": "vision", "dataset": "33108813043581e6", "dataset_name": "images",
    "fingerprint": "9f86d081884c7d65",
    "items": 400, "size": 4_000_000, "target": 5_000_000, "why": "benefit", "order": "uniform", "bytes": 3_000_000, "blobs": 300,
    "hits": 900, "misses": 100, "evicted_bytes": 0,
}  # fmt: skip
ONE = "results/results%3A6f1c2a9b"
PINNED = {"mode": "pin", "quota": 4_000_000, "changed_at": None, "etag": '"7"'}


def test_results_say_what_is_held_and_read(admin, operator):
    """Rule: the list has elements, bytes, target and hit ratio; one pool has the override in force."""
    admin.answers["GET results"] = paged(RESULTS, {**RESULTS, "pool": "results:77", "fingerprint": "ab"})
    admin.answers[f"GET {ONE}"] = {**RESULTS, "override": PINNED}
    first = " ".join(operator("results").out.splitlines()[-2].split())
    assert first == "9f86d081884c vision images 300 400 3.0 MB 5.0 MB benefit 90.0%"
    shown = {
        line.split("  ")[0]: line.split("  ")[-1].strip()
        for line in operator("results", "show", "9f86d081").out.splitlines()
    }
    assert (shown["elements"], shown["held"]) == ("300 of 400", "3.0 MB of an estimated 4.0 MB")
    assert (shown["override"], shown["quota"], shown["reads"]) == ("pin", "4.0 MB", "900 hits, 100 misses")


@pytest.mark.parametrize(
    ("words", "sent", "says"),
    [
        (("never", "9f86"), {"mode": "never", "quota": 4_000_000}, "9f86: never, from the next plan on"),
        (("quota", "9f86", "40GB"), {"mode": "pin", "quota": 40_000_000_000}, "9f86: a quota of 40.0 GB"),
        (("quota", "results:6f1c2a9b", "none"), {"mode": "pin", "quota": None}, "results:6f1c2a9b: no quota"),
        (("auto", "9f86"), {"mode": None, "quota": None}, "9f86: auto"),
    ],
)
def test_results_are_overridden(admin, operator, words, sent, says):
    """Rule: omitted fields do not change, and another operator's change in between is not overwritten."""
    admin.answers["GET results"] = paged(RESULTS)
    admin.answers[f"GET {ONE}"] = {**RESULTS, "override": PINNED}
    admin.answers[f"PUT {ONE}/override"] = PINNED
    assert operator("results", *words).out.startswith(says)
    assert (admin.asked[-1].body, admin.asked[-1].headers["if-match"]) == (sent, '"7"')


def test_results_are_named_by_a_few_digits(admin, operator):
    """Rule: too few digits match no fingerprint, and a fingerprint of several pools is refused with their names."""
    admin.answers["GET results"] = paged(RESULTS, {**RESULTS, "pool": "results:other"})
    assert "unknown results" in operator("results", "pin", "9f8").err
    assert "results:6f1c2a9b, results:other" in operator("results", "pin", "9f86").err


def test_a_pipeline_is_shown_with_its_decisions(admin, operator):
    """Rule: stages, projections of each mode, and workers over time; an override is by the job's name."""
    stage = {"stage": 2, "mark": True, "seconds": 0.004, "bytes": 27648.0, "elements": 100, "versions": 8}
    computing, reading = {"cache": None, "seconds": 10.0, "share": 1.0}, {"cache": 2, "seconds": 2.5, "share": 0.5}
    projections = [computing, reading, {"cache": 4, "seconds": 5.0, "share": 1.0, "filling": 1.04}]
    decision = {"at": "2026-03-01T09:30:00Z", "epoch": 0, "cache": 2, "reason": "fastest", "projections": projections}
    change = {"at": "2026-03-01T09:40:00Z", "rank": 0, "workers": 4, "mode": "get"}
    known = {
        "tenant": "a", "job": "run", "dataset_name": "data", "mode": "cache", "cache": 2, "reason": "fastest", "workers": 4,
        "override": None, "pool": "results:9f", "target": 1000, "stages": [stage], "decisions": [decision], "scaling": [change],
    }  # fmt: skip
    admin.answers["GET pipelines"] = paged(known)
    admin.answers["GET pipelines/a/run"] = known
    admin.answers["PUT pipelines/a/run/override"] = {"mode": "never"}
    shown = operator("pipelines", "show", "run").out
    projected = "compute 10.0 s, stage 2 2.5 s (50.0% fits), stage 4 5.0 s + 1.0 s filling"
    for part in ("2, mark, 8 versions", "4.000 ms", projected, "2026-03-01T09:40:00Z"):
        assert part in shown
    assert operator("pipelines", "never", "a/run").out.splitlines() == ["a/run: never, from the next epoch on"]
    assert admin.asked[-1].body == {"mode": "never"}
    operator("pipelines", "pin", "run", "--mark", "2")
    assert admin.asked[-1].body == {"mode": "pin", "mark": 2}
    admin.answers["GET pipelines/a/run"] = {**known, "override": "pin", "pinned": 2}
    assert "pin, stage 2" in operator("pipelines", "show", "run").out
    assert "unknown pipeline" in operator("pipelines", "show", "none").err


def test_traffic_shows_buckets_and_missed_prefixes(admin, operator):
    """Rule: the output shows the readers, and misses by prefix and reason."""
    admin.answers["GET traffic"] = {
        "buckets": [
            {
                "bucket": "data", "tenant": "vision", "requests_per_second": 20.5, "sent_bytes_per_second": 1e6,
                "hit_ratio": 0.75,
            }
        ],
        "misses": [{"bucket": "data", "prefix": "train/", "reason": "cold", "requests": 1200, "bytes": 3_000_000}],
        "miss_seconds": 431.0,
    }  # fmt: skip
    lines = [" ".join(line.split()) for line in operator("traffic").out.splitlines()]
    assert "data vision 20.5/s 1.0 MB/s 75.0%" in lines
    assert "missed prefixes, last 7 min 11 s" in lines
    assert "data/train/ cold 1,200 3.0 MB" in lines


SEEN: dict[str, Any] = {
    "at": "2026-03-02T14:30:00.125Z", "node": "gw-1", "request_id": "A1", "tenant": "vision", "address": "10.0.0.9",
    "method": "GET", "bucket": "data", "key": "train/\x1b[1", "status": 200, "outcome": "MISS", "reason": "cold",
    "bytes": 2000, "seconds": 0.25,
}  # fmt: skip


def test_requests_are_followed(admin, operator):
    """Rule: a line for each request, by one follower, until there were as many as wanted; names cannot control the terminal."""
    name = "5f2c7d1e0c3b4a6f8e9d0a1b2c3d4e5f"
    pages = iter([[], [SEEN], [SEEN, {**SEEN, "request_id": "A2"}]])
    admin.answers["GET requests"] = lambda _: (200, {"follower": name, "requests": next(pages), "dropped": 7})
    ran = operator("trace", "--below", "data/train/", "--status", "2xx", "--slower", "100ms", "--count", "2")
    first, second = ran.out.splitlines()
    assert "200  MISS    GET  data/train/\\x1b[1  2.0 kB  250.0 ms  cold  vision@10.0.0.9  by gw-1" in first
    assert first == second
    assert "7 more were dropped" in ran.err
    wanted = {"bucket": "data", "prefix": "train/", "status": "2xx", "slower": "0.1"}
    assert [asked.query for asked in admin.asked] == [
        wanted,
        {**wanted, "follower": name},
        {**wanted, "follower": name},
    ]


def test_followed_requests_are_documents_for_programs(admin, operator):
    """Rule: with --json each line is one document."""
    admin.answers["GET requests"] = {"follower": "a" * 32, "requests": [SEEN, SEEN], "dropped": 0}
    lines = operator("trace", "--count", "2", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [SEEN, SEEN]


def test_followed_requests_reach_a_pipe_one_by_one(admin, variables, monkeypatch):
    """Rule: what is followed is not kept back until a buffer is full, also for programs."""
    admin.answers["GET requests"] = {"follower": "a" * 32, "requests": [SEEN, SEEN], "dropped": 0}
    lines: list[int] = []

    class Pipe(io.StringIO):
        def flush(self) -> None:
            """What was written so far reaches the reader."""
            lines.append(self.getvalue().count("\n"))

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with redirect_stdout(Pipe()):
        assert main(["trace", "--count", "2", "--json"]) == 0
    assert lines[:2] == [1, 2]


@pytest.mark.parametrize("status", ["9xx", "20", "abc", "2xxx"])
def test_a_status_is_one_or_a_class(operator, status):
    """Rule: an impossible status is refused; the command would follow nothing otherwise."""
    assert operator("trace", "--status", status).status == 2


def test_top_prints_the_fleet_once_where_there_is_no_terminal(admin, operator):
    """Rule: traffic, busiest buckets, missed prefixes, the largest pools, origins, nodes and problems."""
    pool = {"target": 10**9, "bytes": 5 * 10**8, "hits": 3, "misses": 1}
    admin.answers["GET overview"] = {
        **OVERVIEW,
        "traffic": {
            "buckets": [{"bucket": "data", "tenant": "vision", "requests_per_second": 2, "sent_bytes_per_second": 1e6}],
            "misses": [{"bucket": "data", "prefix": "train/", "reason": "cold", "requests": 12, "bytes": 3000}],
        },
        "streams": [{"name": "data/train/", "pool": pool}, {"name": "data/old/", "pool": {**pool, "target": 1}}],
        "origins": [
            {"name": "default", "state": "silent", "requests_per_second": 3, "p50": 0.02, "lost_by": ["node-1"]}
        ],
    }
    lines = [" ".join(line.split()) for line in operator("top").out.splitlines()]
    for wanted in (
        "data vision 2.0/s 1.0 MB/s -",
        "data/train/ cold 12 3.0 kB",
        "imagenet dataset 28.0 GB 28.0 GB -",
        "data/train/ stream 500.0 MB 1.0 GB 75.0%",
        "data/old/ stream 500.0 MB paused 75.0%",
        "default silent 3.0/s 20.0 ms - - node-1",
        "no problems",
    ):
        assert wanted in lines, wanted


def test_a_plan_shows_money_and_predicted_times(admin, operator):
    """Rule: what each dataset's space saves, and the time of a step as measured, as predicted, and with more space."""
    money = {"per_hour": 1.25, "per_day": 30.0, "currency": "EUR"}
    order = {"caching": "part", "why": "benefit", "granted": 1000, "saves": money}
    job = {"phase": "steady", "benefit": 2.5, "t_hit": 0.35, "t_predicted": 0.34, "t_with_more": 0.3}
    admin.answers["GET plan"] = {
        "version": 3, "capacity": 2000, "granted": 1000, "saves": money, "datasets": {"ab" * 32: order},
        "jobs": {"vision/r": job, "vision/new": {"phase": "probe-miss", "benefit": 0.0}}, "inputs": {}, "history": [],
    }  # fmt: skip
    lines = operator("plan").out.splitlines()
    assert any(line.split(maxsplit=1) == ["saves", "EUR 1.25 an hour, EUR 30.00 a day"] for line in lines)
    assert any("EUR 1.25 an hour" in line and line.startswith("ab" * 6) for line in lines)
    assert any(
        line.split() == ["vision/r", "steady", "0.350", "s", "0.340", "s", "0.300", "s", "2.50x"] for line in lines
    )
    assert any(line.split()[:2] == ["vision/new", "probe-miss"] for line in lines)
