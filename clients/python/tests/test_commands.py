"""Commands that query a gateway: datasets, jobs, the bench; and rules for every command."""

import json
import os
import subprocess
import sys

import pytest
from fake_gateway import ID, FakeBatchGateway, Store, problem, serving

from larder import cli
from larder.commands.bench import BatchRead, Draw, Measured, measure, percentile
from larder.grammar import parser

INFO = {
    "name": "digits", "id": ID, "items": 40, "bytes": 400, "caching": "full",
    "plan": 1, "resident": 12,
}  # fmt: skip
JOB = {
    "job": "run\x1b-1", "dataset": ID, "name": "digits", "gpus": 8, "batch_size": 32, "ranks": 8, "ranks_heard": 7,
    "caching": "auto", "joined_at": "2026-01-01T00:00:00Z", "silent": 0.4, "epoch": 3, "upcoming": [4, 7], "epoch_left": 2,
    "phase": "steady", "cache": True, "benefit": 2.3, "t_miss": 0.62, "t_hit": 0.27, "t_predicted": 0.26,
}  # fmt: skip

PIPELINE = {
    "tenant": "a", "job": "run-1", "dataset_name": "train", "mode": "cache", "cache": 2, "reason": "fastest", "workers": 4,
    "stages": [{"stage": 2, "mark": True, "seconds": 0.004, "bytes": 27648.0, "elements": 100, "versions": 8}],
    "decisions": [{
        "at": "2026-03-01T09:30:00Z", "epoch": 0, "cache": 2, "reason": "fastest",
        "projections": [{"cache": None, "seconds": 10.0}, {"cache": 2, "seconds": 2.5, "share": 0.4, "filling": 1.04}],
    }],
    "scaling": [{"at": "2026-03-01T09:40:00Z", "rank": 0, "workers": 4, "mode": "get"}],
}  # fmt: skip


def answer(handler, asked):
    """Datasets, jobs, places of items, and the items themselves by plain S3."""
    path = asked.path
    if path == "/-/v1/pipelines":
        handler.send_json({"pipelines": [PIPELINE]})
    elif path == "/-/v1/jobs":
        handler.send_json({"jobs": [JOB]})
    elif path == "/-/v1/jobs/run-1":
        handler.send_json(JOB)
    elif path.endswith("/items"):
        places = [{"index": at, "bucket": "b", "key": f"k{at}", "offset": None, "length": 10} for at in range(40)]
        start, count = int(asked.query["start"]), int(asked.query["count"])
        handler.send_json({"items": places[start : start + count]})
    elif path.startswith("/b/k"):
        handler.send(200, b"x" * 10)
    elif path == "/-/v1/datasets/digits":
        handler.send_json(INFO)
    else:
        handler.send_problem(404, "UnknownJob" if "/jobs/" in path else "UnknownDataset", "there is none")


@pytest.fixture
def server(monkeypatch):
    """A gateway with a dataset of forty items; a test can make item 7 missing."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "GWA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with serving(FakeBatchGateway(Store(dict.fromkeys(range(40), b"x" * 10)))) as server:
        server.other = answer
        monkeypatch.setenv("LARDER_ENDPOINT", server.endpoint)
        yield server


def test_jobs_list(server, capsys):
    """Rule: a line for each job with its gain from the cache; names are printable."""
    assert cli.main(["jobs", "list"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["JOB", "DATASET", "GPUS"]
    assert row.split() == [
        "run\\x1b-1",
        "digits",
        "8",
        "7/8",
        "3",
        "steady",
        "yes",
        "0.620",
        "s",
        "0.270",
        "s",
        "0.260",
        "s",
        "-",
        "2.30x",
        "0",
        "s",
    ]


def test_pipelines(server, capsys):
    """The list has a row per pipeline; a single one shows stages, the projections of its decisions, and workers over time."""
    assert cli.main(["pipelines", "list"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["JOB", "DATASET", "MODE", "MARK", "WHY", "WORKERS"]
    assert row.split() == ["run-1", "train", "cache", "stage", "2", "fastest", "4"]
    assert cli.main(["pipelines", "show", "run-1"]) == 0
    shown = capsys.readouterr().out
    projected = "compute 10.0 s, stage 2 2.5 s + 1.0 s filling (40.0% fits)"
    for part in ("mark, 8 versions", "4.000 ms", projected, "2026-03-01T09:40:00Z"):
        assert part in shown
    assert cli.main(["pipelines", "show", "other"]) == 1
    assert "unknown pipeline 'other'" in capsys.readouterr().err
    assert cli.main(["pipelines", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pipelines": [PIPELINE]}


@pytest.mark.parametrize("group", ["datasets", "jobs", "pipelines"])
def test_a_group_alone_is_its_list(server, capsys, group):
    """``larder jobs`` is ``larder jobs list``, with and without options, as with ``larder-gateway``."""
    for options in ([], ["--json"]):
        cli.main([group, "list", *options])
        listed = capsys.readouterr()
        cli.main([group, *options])
        assert capsys.readouterr() == listed


def test_jobs_as_json(server, capsys):
    """Rule: --json is the gateway's document."""
    assert cli.main(["jobs", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"jobs": [JOB]}
    assert cli.main(["jobs", "show", "run-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == JOB


def test_a_job_is_shown(server, capsys):
    """Rule: a job's facts are in the words of ``larder-gateway jobs show``; what is not known is left out."""
    last = {"epoch": 2, "items": 100, "origin_reads": 26, "per_item": 0.26, "least": 0.5}
    job = JOB | {"silent": 3725.5, "last_epoch": last, "t_with_more": None}
    server.other = lambda handler, asked: handler.send_json(job)
    assert cli.main(["jobs", "show", "run-1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job           run\\x1b-1",
        "dataset       digits",
        "gpus          8",
        "ranks         8",
        "epoch         3",
        "phase         steady",
        "cache         yes",
        "t miss        0.620 s",
        "t hit         0.270 s",
        "predicted     0.260 s",
        "benefit       2.30x",
        "silent        1 h 2 min",
        "origin reads  0.26 per item of epoch 2; 0.50 is the least possible, for all jobs on the dataset together",
    ]
    job |= {"last_epoch": None, "epoch": -1, "silent": 0.4, "benefit": 0.0}
    assert cli.main(["jobs", "show", "run-1"]) == 0
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert not {"origin reads", "epoch", "benefit"} & set(names)


def test_no_jobs(server, capsys):
    """Rule: an empty list is reported and is not an error."""
    server.other = lambda handler, asked: handler.send_json({"jobs": []})
    assert cli.main(["jobs", "list"]) == 0
    assert capsys.readouterr().out == "no jobs\n"


def test_an_unknown_job(server, capsys):
    """Rule: a job that is not there is a problem, in the gateway's words; a name with a slash is a name."""
    assert cli.main(["jobs", "show", "../datasets"]) == 1
    assert "UnknownJob" in capsys.readouterr().err
    assert server.asked[-1].path == "/-/v1/jobs/..%2Fdatasets"


@pytest.mark.parametrize("group", ["datasets", "dataset"])
def test_datasets_by_both_names(server, capsys, group):
    """Rule: the command accepts ``datasets`` and its earlier name."""
    assert cli.main([group, "show", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == 40


def test_bench(server, capsys):
    """Rule: bench reads batches for a while and prints rates, percentiles and the share that was in the cache."""
    assert cli.main(["bench", "digits", "--batch-size", "8", "--seconds", "0.05", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (run,) = told["runs"]
    assert (told["dataset"], told["batch_size"], run["way"], run["failed"]) == ("digits", 8, "batches", 0)
    assert run["items"] == 8 * run["batches"] == run["hits"]
    assert run["bytes"] == 10 * run["items"]
    assert run["items_per_second"] == pytest.approx(run["items"] / run["seconds"])
    assert 0 < run["p50"] <= run["p99"]
    assert {request.query["mode"] for request in server.batches()} == {"substitute"}


def test_bench_compares(server, capsys):
    """Rule: with --compare the same batches are read again by plain GETs, and a table has both."""
    words = ["bench", "digits", "--batch-size", "8", "--substitute", "1", "--seconds", "0.05", "--compare"]
    assert cli.main(words) == 0
    heading, batches, plain = capsys.readouterr().out.splitlines()
    assert "ITEMS/S" in heading
    assert "P99 BATCH" in heading
    assert batches.startswith(f"batches, {server.endpoint}")
    assert "100.0%" in batches
    assert plain.startswith(f"plain S3, {server.endpoint}")
    read = {asked.path for asked in server.asked if asked.path.startswith("/b/k")}
    first = {f"/b/k{index}" for index in server.batches()[0].indices}
    assert first <= read


def test_bench_of_items_that_cannot_be_had(server, capsys):
    """Rule: items that are missing are counted, and make it a problem."""
    server.store.lost = dict.fromkeys(range(40), 3)
    assert cli.main(["bench", "digits", "--batch-size", "8", "--substitute", "1", "--seconds", "0.05", "--json"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["items"] == 0
    assert run["failed"] > 0


def test_bench_of_an_empty_dataset(server, capsys):
    """Rule: measuring an empty dataset is wrong usage."""
    server.other = lambda handler, asked: handler.send_json({**INFO, "items": 0, "bytes": 0})
    assert cli.main(["bench", "digits"]) == 2
    assert "is empty" in capsys.readouterr().err


def test_a_round_has_every_item_once():
    """Rule: of a pool each candidate is drawn once before any is drawn again, in an order that the seed gives."""
    drawn = []
    draw = Draw(40, seed=1)
    for _ in range(5):
        some = draw.candidates(16, 8)[:8]
        drawn += some.tolist()
        draw.taken(some)
    assert sorted(drawn) == list(range(40))
    assert drawn != sorted(drawn)
    assert Draw(40, seed=1).candidates(16, 8).tolist()[:8] == drawn[:8]
    assert Draw(3, seed=1).candidates(80, 8).tolist() != []


def test_what_is_measured():
    """Rule: the first batch is not counted; rates are over the time of all others, percentiles over each."""
    clock = iter([0.0, 1.0, 3.0, 6.0])
    measured = measure(Measured("batches", "e", hits=0), lambda: BatchRead(4, 40, 1, 2), 5.0, lambda: next(clock))
    facts = measured.document()
    assert (facts["batches"], facts["items"], facts["failed"], facts["hits"]) == (3, 12, 3, 6)
    assert (facts["items_per_second"], facts["bytes_per_second"], facts["p50"], facts["p99"]) == (2.0, 20.0, 2.0, 3.0)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles(share, value):
    """Rule: the nearest rank."""
    assert percentile(list(range(100, 0, -1)), share) == value
    assert percentile([], share) == 0


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "ten"])
def test_no_seconds(seconds, capsys):
    """Rule: an invalid time is wrong usage."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "digits", f"--seconds={seconds}"])
    assert ended.value.code == 2


@pytest.mark.parametrize("older", ["static", "chunked"])
def test_older_names_of_a_mode(older):
    """Rule: scripts for version 0.1 go on; the mode is ``part``."""
    words = ["datasets", "register", "digits", "digits.parquet", "--caching", older]
    assert parser().parse_args(words).caching == "part"


def test_a_wrong_mode_names_the_right_ones(capsys):
    """Rule: the present modes are offered, and no older name of one."""
    with pytest.raises(SystemExit):
        parser().parse_args(["datasets", "register", "digits", "digits.parquet", "--caching", "lru"])
    said = capsys.readouterr().err
    assert "there are auto, full, part, none" in said
    assert "static" not in said
    assert "chunked" not in said


def test_the_help_names_the_older_modes_that_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: what is accepted is documented: static and chunked mean part."""
    with pytest.raises(SystemExit):
        parser().parse_args(["datasets", "register", "--help"])
    assert "static and chunked mean part" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [["digest", "build"], ["datasets", "register"], ["jobs", "show"], ["bench"], []])
def test_help_by_name(words, capsys):
    """Rule: help COMMAND is COMMAND --help."""
    said = []
    for typed in (["help", *words], [*words, "--help"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(typed)
        assert ended.value.code == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_no_access_key_is_wrong_configuration(server, monkeypatch, tmp_path, capsys):
    """Rule: status 2, and where keys are looked for."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("larder.http.credentials._botocore", lambda profile, region: None)
    assert cli.main(["jobs", "list"]) == 2
    assert "AWS_ACCESS_KEY_ID" in capsys.readouterr().err


def test_a_refusal(server, capsys):
    """Rule: a refusal of the gateway is a problem, with its code."""
    server.faults = [problem(403, "AccessDenied", "not yours")]
    assert cli.main(["jobs", "list"]) == 1
    assert "AccessDenied" in capsys.readouterr().err


def test_a_full_disk():
    """A result that cannot be written is one line and status 1, also for output that is buffered until the end."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "larder", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, env=environ
        )
    assert (done.returncode, done.stderr) == (1, "larder: [Errno 28] No space left on device\n")


def test_a_reader_that_leaves():
    """Rule: ``| head`` causes no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "larder", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(60)
