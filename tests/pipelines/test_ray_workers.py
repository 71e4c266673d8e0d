"""Input workers on a local Ray cluster of several nodes: exactly once over deaths, scaling and lost nodes; nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rig.batches import bytes_of, stock
from rig.gateways import Settings, gateway
from rig.origin import OriginThread
from tests.digest.test_ray import processes_of
from tests.ray_settings import ENVIRONMENT

STORED = 200
"""Items of a dataset whose results are stored."""
ROOT = Path(__file__).parents[2]

# Ray starts Python processes for each actor: on a busy machine a scenario takes minutes.
pytestmark = pytest.mark.timeout(400)


class Cluster(NamedTuple):
    """A running cluster: calls a scenario of ray_programs and returns its findings."""

    run: Callable[..., dict[str, Any]]
    address: str
    directory: str


@contextmanager
def program(*words: str, directory: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of ray_programs, with Ray's files in a directory; killed at the end if it still runs."""
    command = [sys.executable, "-m", "tests.pipelines.ray_programs", *words]
    with log.open("a") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, "RAY_TMPDIR": directory},
            process_group=0,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """The next line of JSON; Ray greets on standard output."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file for the programs' standard error."""
    return tmp_path_factory.mktemp("ray") / "log"


@pytest.fixture(scope="module")
def cluster(log: Path) -> Iterator[Cluster]:
    """A cluster, of which no process stays."""
    # Not below pytest's own directory: the paths of Ray's sockets would be too long for unix(7).
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
        with program("cluster", directory=directory, log=log) as process:
            address = said(process, log)["address"]

            def run(*words: str) -> dict[str, Any]:
                assert process.stdin is not None
                process.stdin.write(" ".join(words) + "\n")
                process.stdin.flush()
                return said(process, log)

            yield Cluster(run, address, directory)
            process.communicate(timeout=60)
            assert process.returncode == 0, log.read_text()
        assert processes_of(directory) == []


def test_a_cluster_gives_what_one_process_gives(cluster: Cluster) -> None:
    """Values, order and random numbers of whole epochs are the same."""
    found = cluster.run("equal")
    assert found["cluster"] == found["alone"]


def test_large_elements_come_through_the_object_store(cluster: Cluster) -> None:
    """Large elements arrive in batches and one by one, and the loop may write to them."""
    found = cluster.run("elements")
    assert found["sums"] == [number * 2.0**17 for number in range(6)]
    assert found["own"] == [number + 1.0 for number in range(6)]


def test_an_actor_that_dies_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """After ``kill -9`` in the middle of an element every element comes once."""
    found = cluster.run("died", str(tmp_path))
    assert Counter(value for batch in found["came"] for value in batch) == Counter(range(103))
    assert found["deaths"] == 1


def test_scaling_and_deaths_in_the_middle_of_an_epoch(cluster: Cluster) -> None:
    """Up, down, and with actors killed from outside: nothing comes twice, nothing is lost."""
    found = cluster.run("scaled")
    assert Counter(found["came"]) == Counter(range(800))
    assert found["killed"] >= found["deaths"] >= 1
    assert found["workers"] >= 2


def test_a_node_is_removed_in_the_middle_of_an_epoch(cluster: Cluster) -> None:
    """Workers die with their node; others compute the elements that they had not returned, and the epoch is complete."""
    found = cluster.run("removed")
    assert Counter(found["came"]) == Counter(range(1200))
    assert found["before"] > 0
    assert found["nodes"] == 2
    assert found["deaths"] >= 1
    assert found["after"] == 1


def test_the_machines_own_workers_are_first_and_stay_last(cluster: Cluster) -> None:
    """Rule: with ``local+ray``, workers for which the machine has no room are actors, which go first when there are fewer; a dead
    local worker is replaced by a local one; and the epochs are those of one process."""
    found = cluster.run("local_first")
    assert found["workers"] == [[1, 0], [3, 2], [1, 0]]
    assert found["deaths"] == 1
    assert found["epochs"] == found["alone"]


def test_a_state_resumes_with_another_number_of_actors(cluster: Cluster) -> None:
    """The epoch is the one that one process gives."""
    found = cluster.run("resumed")
    assert found["came"] == found["alone"]


def test_actors_store_results_and_read_them(cluster: Cluster, tmp_path: Path) -> None:
    """Through a mark every element comes once per epoch with its own contents, also when an actor dies while results are put and
    while they are read. Later epochs, of this pipeline or of an equal one, compute at most what dead actors had not put."""
    with OriginThread() as origin, gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        items = stock(origin, tmp_path / "files", "items", bytes_of(STORED, 300, "ray"))
        items.register(running)
        found = cluster.run("stored", running.endpoint, items.name, str(tmp_path / "computed"))
    whole = [[index, list(body)] for index, body in enumerate(items.bodies)]
    assert [sorted(epoch) for epoch in found["epochs"]] == [whole] * 3
    first, second, third = found["computed"]
    assert STORED <= first <= second <= third < first + STORED // 4
    results = found["results"]
    assert results[0]["read"] >= STORED // 2
    lost = third - second
    assert results[1] == {"read": STORED - lost, "computed": lost, "stored": lost, "refused": 0, "damaged": 0}


def test_a_pools_actors_are_taken_over(cluster: Cluster) -> None:
    """Rule: a pipeline with the same functions computes in the processes that the one before had, whatever its items and seed."""
    found = cluster.run("taken_over")
    assert found["second"]["processes"] == found["first"]["processes"]
    assert found["first"]["whole"]
    assert found["second"]["whole"]


def test_programs_share_a_pool_and_a_killed_one_gives_back(cluster: Cluster, log: Path) -> None:
    """Rule: a program that has all actors of a pool gives one to another that has none, and loses no element by it; when it is
    killed, its actors go to the next pipeline."""
    before = cluster.run("lent_two")["processes"]
    with program("train", cluster.address, "shared", directory=cluster.directory, log=log) as trainer:
        assert sorted(said(trainer, log)["process"] for _ in range(2)) == before
        beside = cluster.run("lent_one")
        assert (beside["whole"], beside["deaths"]) == (True, 0)
        assert set(beside["processes"]) <= set(before)
    assert cluster.run("lent_two")["processes"] == before


def test_a_pool_outlives_its_actors_and_a_pipeline_its_pool(cluster: Cluster) -> None:
    """Rule: a killed actor is replaced; a killed pool, which takes its actors with it, too; no element is lost or repeated."""
    found = cluster.run("lent_killed")
    assert found == {"whole": True, "deaths": 2}


def test_only_equal_functions_with_equal_credentials_share_a_pool(cluster: Cluster) -> None:
    """Rule: other code, another access key, another secret and other options of actors give another pool."""
    found = cluster.run("named_pools")
    assert len(set(found["equal"])) == 1
    assert len({*found["equal"], *found["others"]}) == 5


def test_an_unused_pool_ends_with_its_actors(cluster: Cluster) -> None:
    """Rule: after the time for which it keeps actors warm, nothing of a pool is left on the cluster."""
    found = cluster.run("unused")
    assert found["after"] == found["before"]


def test_errors_name_element_and_stage(cluster: Cluster) -> None:
    """A function that raises, and one that hangs, whose actor is ended."""
    raised, hung = cluster.run("failed")["said"]
    assert "item 7 " in raised
    assert "in stage 1, map(failing_at_7): ZeroDivisionError: seven" in raised
    assert "item 7 " in hung
    assert "in stage 1, map(hanging_at_7): it has not returned for" in hung


def test_actors_end_with_their_pipeline(cluster: Cluster) -> None:
    """Closed or forgotten, in the middle of an epoch; then the cluster's CPUs are free for the next one, which takes all."""
    found = cluster.run("closed")
    assert found["processes"] == 2
    assert found["workers"] == found["free"] == 2
    assert found["came"] == 8


def ended(process: int, seconds: float = 60) -> bool:
    """True if a process, which need not be a child, ends within ``seconds``."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(wait([descriptor], seconds))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_actors_end_with_the_training_process(cluster: Cluster, log: Path, how: signal.Signals) -> None:
    """However it ends; Ctrl-C raises in its loop, where the state can be saved."""
    with program("train", cluster.address, directory=cluster.directory, log=log) as trainer:
        workers = [said(trainer, log)["process"] for _ in range(2)]
        os.killpg(trainer.pid, how)
        if how == signal.SIGINT:
            assert said(trainer, log) == {"epoch": 0}
            assert trainer.wait(60) == 0
        assert all(map(ended, workers))
