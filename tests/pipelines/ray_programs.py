"""Programs on a local Ray cluster of several nodes, for test_ray_workers.py.

``python -m tests.pipelines.ray_programs cluster`` starts the cluster, then runs a function of `SCENARIOS` for each name on its
input. ``... train ADDRESS`` is a separate training process. Both report their findings in lines of JSON. Ray warns and changes
signal handlers and the environment, so it stays out of the tests' process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import larder
from larder.base.errors import StageFailed
from larder.pipelines import Pipeline
from larder.pipelines.hosts import usable_cores
from larder.pipelines.ray_pool import NAMESPACE, pool_name
from larder.pipelines.stages import Stage
from larder.pipelines.workers import WorkerTask
from larder.reading.source import GatewaySource
from larder.testing import MemorySource
from tests.pipelines.result_steps import Noting

STORE = 80 * 1024**2
"""Bytes of a node's object store; Ray wants 75 MiB at least."""
_cluster: Cluster


def pipeline_of(items: int, workers: int | str, **options: Any) -> Pipeline:
    """A pipeline over so many items in memory, each its own number as text."""
    return larder.pipeline("numbers", source=MemorySource(items), workers=workers, **options)


@contextmanager
def closing(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Close a pipeline at the end."""
    try:
        yield pipeline
    finally:
        pipeline.close()


def number(item: Any) -> int:
    """The item's number."""
    return int(bytes(item.data))


def noisy(value: int) -> dict[str, Any]:
    """The value with random numbers, as a dict of arrays."""
    return {"n": value, "x": np.random.rand(3)}


def large(item: Any) -> Any:
    """A megabyte of the item's number, which goes through the object store."""
    return np.full(1 << 17, number(item), np.float64)


def placed(item: Any) -> tuple[int, int, str]:
    """The item's number, and the process and node that computed it; slow enough for others to get a share."""
    time.sleep(0.004)
    return number(item), os.getpid(), ray.get_runtime_context().get_node_id()


def failing_at_7(item: Any) -> int:
    """The item's number; raises for item 7."""
    if number(item) == 7:
        raise ZeroDivisionError("seven")
    return number(item)


def hanging_at_7(item: Any) -> int:
    """The item's number; never returns for item 7."""
    while number(item) == 7:
        time.sleep(3600)
    return number(item)


class DyingOnce:
    """The item's number; the first process that sees item 7 dies of it, after it has written a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, item: Any) -> int:
        """The number."""
        if number(item) == 7 and not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number(item)


def epochs_of(workers: int | str) -> list[list[list[float]]]:
    """Two epochs of batches, with everything that is random."""
    with closing(pipeline_of(103, workers, seed=3).map(number).map(noisy).shuffle(10).batch(8)) as pipeline:
        return [[[*batch["n"].tolist(), *batch["x"].ravel().tolist()] for batch in pipeline] for _ in range(2)]


def equal() -> dict[str, Any]:
    """The same epochs here and on the cluster."""
    return {"alone": epochs_of(0), "cluster": epochs_of("ray:2")}


def elements() -> dict[str, Any]:
    """Large elements in batches, and one by one, where the loop writes to them."""
    with closing(pipeline_of(6, "ray:1").map(large).batch(3)) as pipeline:
        sums = [float(total) for batch in pipeline for total in batch.sum(axis=1)]
    own = []
    with closing(pipeline_of(6, "ray:1").map(large)) as pipeline:
        for element in pipeline:
            element += 1
            own.append(float(element[0]))
    return {"sums": sorted(sums), "own": sorted(own)}


def died(directory: str) -> dict[str, Any]:
    """A worker that dies in the middle of an element."""
    with closing(pipeline_of(103, "ray:1").map(DyingOnce(Path(directory) / "died")).batch(8)) as pipeline:
        came = [batch.tolist() for batch in pipeline]
        return {"came": came, "deaths": pipeline.stats()["worker_deaths"]}


def scaled() -> dict[str, Any]:
    """Workers are killed from outside and scaled while an epoch runs."""
    came, processes, killed = [], set(), 0
    with closing(pipeline_of(800, "ray:1").map(placed)) as pipeline:
        for place, (value, process, _) in enumerate(pipeline):
            came.append(value)
            processes.add(process)
            if place % 100 == 0:
                pipeline.scale(1 + place // 100 % 3)
            if place % 300 == 150:
                with suppress(ProcessLookupError):  # it may have ended since
                    os.kill(process, signal.SIGKILL)
                    killed += 1
        return {"came": came, "workers": len(processes), "killed": killed, "deaths": pipeline.stats()["worker_deaths"]}


def removed() -> dict[str, Any]:
    """A node is removed in the middle of an epoch, while there are items that no worker has been given."""
    node = _cluster.add_node(num_cpus=2, node_ip_address="127.0.0.1", object_store_memory=STORE)
    came, nodes = [], []
    with closing(pipeline_of(1200, "ray:4", ray_options={"scheduling_strategy": "SPREAD"}).map(placed)) as pipeline:
        for value, _, where in pipeline:
            came.append(value)
            nodes.append(where)
            if node is not None and node.node_id in nodes and len(came) > 200:
                _cluster.remove_node(node, allow_graceful=False)
                gone, node = node.node_id, None
                at = len(came)
        found = {"came": came, "deaths": pipeline.stats()["worker_deaths"], "at": at}
    _cluster.wait_for_nodes(timeout=60)  # later scenarios count the CPUs of the nodes that Ray still lists
    return {**found, "before": nodes.count(gone), "nodes": len(set(nodes)), "after": len(set(nodes[-50:]) - {gone})}


def seated(item: Any) -> tuple[int, int, bool]:
    """The item's number, the process that computed it, and whether that is an actor; slow enough for others to get a share."""
    time.sleep(0.004)
    return number(item), os.getpid(), ray.is_initialized()


def local_first() -> dict[str, Any]:
    """A machine with room for one worker: it is scaled up, loses that worker, and is scaled down again; epochs follow each other
    until all of it has happened."""
    os.environ["LOCAL_WORLD_SIZE"] = str(usable_cores())
    epochs: list[list[int]] = []
    said: list[tuple[int, int]] = []
    first = killed = 0
    with closing(pipeline_of(300, "local+ray:1", seed=3).map(seated)) as pipeline:

        def workers() -> tuple[int, int]:
            return pipeline.stats()["workers"], pipeline.stats()["remote_workers"]

        while len(said) < 3:
            epochs.append([])
            for value, process, on_cluster in pipeline:
                epochs[-1].append(value)
                if not said:
                    said.append(workers())
                    pipeline.scale(3)
                elif on_cluster and not killed:
                    os.kill(killed := first, signal.SIGKILL)
                elif len(said) == 1 and killed not in (0, process) and not on_cluster:
                    said.append(workers())
                    pipeline.scale(1)
                elif len(said) == 2 and workers() == (1, 0):
                    said.append(workers())
                first = process if not on_cluster and not killed else first
        deaths = pipeline.stats()["worker_deaths"]
    del os.environ["LOCAL_WORLD_SIZE"]
    with closing(pipeline_of(300, 0, seed=3).map(number)) as pipeline:
        alone = [list(pipeline) for _ in epochs]
    return {"epochs": epochs, "alone": alone, "workers": said, "deaths": deaths}


def lent(workers: int, items: int = 200, warm: float = 600.0, **options: Any) -> dict[str, Any]:
    """Epochs with actors of a pool of two, until so many have computed something: the processes, and the items of all epochs."""
    options = {"ray_options": {"num_cpus": 0}, "pool": larder.WorkerPool(2, warm), **options}
    epochs, processes = [], set()
    with closing(pipeline_of(items, f"ray:{workers}", **options).map(placed)) as pipeline:
        while len(processes) < workers:
            came, those, _ = zip(*pipeline, strict=True)
            epochs.append(sorted(came))
            processes |= set(those)
        whole = all(came == list(range(items)) for came in epochs)
        return {"whole": whole, "processes": sorted(processes), "deaths": pipeline.stats()["worker_deaths"]}


def taken_over() -> dict[str, Any]:
    """Pipelines of different items and seeds, one after the other."""
    return {"first": lent(2, seed=1), "second": lent(2, 300, seed=2)}


def lent_one() -> dict[str, Any]:
    """An epoch with one actor of the pool."""
    return lent(1)


def lent_two() -> dict[str, Any]:
    """An epoch with both actors of the pool."""
    return lent(2)


def lent_killed() -> dict[str, Any]:
    """Epochs in which an actor of the pool is killed, and then ones in which the pool is, with all its actors."""
    options = {"ray_options": {"num_cpus": 0}, "pool": larder.WorkerPool(2, 600.0)}
    with closing(pipeline_of(200, "ray:1", **options).map(placed)) as pipeline:

        def kill_actor(process: int) -> None:
            os.kill(process, signal.SIGKILL)

        def kill_pools(process: int) -> None:
            for name in pools():
                ray.kill(ray.get_actor(name, NAMESPACE))

        epochs = []
        for trouble in (kill_actor, kill_pools):
            deaths, made = pipeline.stats()["worker_deaths"], False
            while pipeline.stats()["worker_deaths"] == deaths:
                epochs.append([])
                for value, process, _ in pipeline:
                    epochs[-1].append(value)
                    if len(epochs[-1]) == 50 and not made:
                        trouble(process)
                        made = True
        return {
            "whole": all(sorted(came) == list(range(200)) for came in epochs),
            "deaths": pipeline.stats()["worker_deaths"],
        }


def unused() -> dict[str, Any]:
    """A pool that keeps nothing warm, after its only pipeline: the number of pools that there are then, and of those before."""
    before = len(pools())
    processes = lent(1, 20, warm=0.0, ray_options={"num_cpus": 0.5})["processes"]
    wait_for_end(set(processes))
    deadline = time.monotonic() + 60
    while len(pools()) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"before": before, "after": len(pools())}


def pools() -> list[str]:
    """The names of the pools on the cluster."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if actor["namespace"] == NAMESPACE]


def named_pools() -> dict[str, Any]:
    """The names of pools for a function, credentials and options, for equal ones, and for others."""

    def name(function: Callable[[Any], Any], key: str, secret: str, **options: Any) -> str:
        access = larder.Access(credentials=larder.Credentials(key, secret))
        source = GatewaySource("http://127.0.0.1:9", "numbers", access)
        task = WorkerTask(source, MemorySource(7).describe(), (Stage("map", 1, function),), seed=1, job=key)
        return pool_name(task, options)[0]

    return {
        "equal": [name(number, "GWA", "secret"), name(number, "GWA", "secret")],
        "others": [
            name(placed, "GWA", "secret"),
            name(number, "GWB", "secret"),
            name(number, "GWA", "other"),
            name(number, "GWA", "secret", num_cpus=2),
        ],
    }


def resumed() -> dict[str, Any]:
    """Resume an epoch from a state with another number of workers."""
    with closing(pipeline_of(103, "ray:2", seed=3).map(number).batch(8)) as pipeline:
        first = [batch.tolist() for batch in islice(pipeline, 5)]
        state = json.loads(json.dumps(pipeline.state_dict()))
    with closing(pipeline_of(103, "ray:1", seed=3).map(number).batch(8)) as pipeline:
        pipeline.load_state_dict(state)
        rest = [batch.tolist() for batch in pipeline]
    return {
        "came": first + rest,
        "alone": [batch.tolist() for batch in pipeline_of(103, 0, seed=3).map(number).batch(8)],
    }


def in_process(element: dict[str, Any]) -> dict[str, Any]:
    """The element as a list, and the process that delivered it; slow enough for others to get a share."""
    time.sleep(0.004)
    return {"index": element["index"], "data": element["data"].tolist(), "process": os.getpid()}


def stored(endpoint: str, dataset: str, file: str) -> dict[str, Any]:
    """Three epochs through a mark: actors of one pipeline store results and read them, and one dies in each of the first two;
    those of another pipeline read in the third. With the number of computations after each epoch."""
    access = larder.Access(credentials=larder.Credentials("GWA", "gateway-secret-a"), timeout=20.0)
    step = Noting(Path(file), seconds=0.004)
    epochs, computed, results = [], [], []

    def made() -> Pipeline:
        options = {"endpoint": endpoint, "access": access, "workers": "ray:2", "cache": 2}
        return larder.pipeline(dataset, **options).map(step).autocache().map(in_process)

    for numbers in ((0, 1), (2,)):
        with closing(made()) as pipeline:
            for number in numbers:
                epochs.append([])
                for place, element in enumerate(pipeline):
                    epochs[-1].append((element["index"], element["data"]))
                    if place == 80 and number < 2:
                        with suppress(ProcessLookupError):  # it may have ended since
                            os.kill(element["process"], signal.SIGKILL)
                computed.append(sum(step.computed().values()))
            results.append(pipeline.stats()["results"]["stage 2, autocache()"])
    return {"epochs": epochs, "computed": computed, "results": results}


def failed() -> dict[str, Any]:
    """The errors that the training loop gets for functions that raise or hang."""
    said = []
    for function in (failing_at_7, hanging_at_7):
        with closing(pipeline_of(20, "ray:1", timeout=1).map(function)) as pipeline:
            try:
                list(pipeline)
            except StageFailed as error:
                said.append(str(error))
    return {"said": said}


def closed() -> dict[str, Any]:
    """Processes of pipelines that were closed, or forgotten, or gave a worker back, in an epoch; CPUs that are free then."""
    free = ray.cluster_resources()["CPU"]
    pipeline = pipeline_of(400, "ray:1").map(placed)
    processes = {process for _, process, _ in islice(pipeline, 100)}
    pipeline.close()
    processes |= {process for _, process, _ in islice(pipeline_of(400, "ray:1").map(placed), 100)}
    wait_for_end(processes)
    with closing(pipeline_of(8, "ray").map(placed)) as pipeline:
        came = len(list(pipeline))
        return {"processes": len(processes), "free": free, "workers": pipeline.stats()["workers"], "came": came}


def wait_for_end(processes: set[int]) -> None:
    """Wait until none of these processes runs and Ray has their CPUs again."""
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{each}").exists() for each in processes) or (
        ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"of {processes} some still run, or hold CPUs: {ray.available_resources()}")
        time.sleep(0.05)


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each
    for each in (
        *(equal, elements, died, scaled, removed, local_first, resumed, stored, failed, closed),
        *(taken_over, lent_one, lent_two, lent_killed, unused, named_pools),
    )
}


def main_cluster() -> None:
    """Two CPUs on a node of their own, and the driver on a node without any: every element crosses nodes."""
    global _cluster
    where = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE}
    head = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True, "include_log_monitor": False, **where}
    _cluster = Cluster(initialize_head=True, head_node_args=head)
    _cluster.add_node(num_cpus=2, **where)
    ray.init(address=_cluster.address, log_to_driver=False)
    say({"address": _cluster.address})
    try:
        for line in sys.stdin:
            name, *arguments = line.split()
            say(SCENARIOS[name](*arguments))
    finally:
        ray.shutdown()
        _cluster.shutdown()


def main_train(address: str, shared: str = "") -> None:
    """An endless training loop that reports its worker processes, and its interruption; with actors of its own, or of a pool of
    two."""
    ray.init(address=address, log_to_driver=False)
    options = {"pool": larder.WorkerPool(2, 600.0), "ray_options": {"num_cpus": 0}} if shared else {}
    pipeline, seen = pipeline_of(10**6, "ray:2", **options).map(placed), set()
    try:
        for _, process, _ in pipeline:
            if process not in seen:
                seen.add(process)
                say({"process": process})
    except KeyboardInterrupt:
        say({"epoch": pipeline.state_dict()["epoch"]})


def say(found: dict[str, Any]) -> None:
    """Write a line of JSON."""
    print(json.dumps(found), flush=True)


PROGRAMS: dict[str, Callable[..., None]] = {"cluster": main_cluster, "train": main_train}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
