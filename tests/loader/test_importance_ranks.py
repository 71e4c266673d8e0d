"""Training by importance in real processes: two ranks of torch.distributed with four workers each, under kills."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader

import larder
from larder.planner.draw import DrawRule
from larder.planner.importance import ImportancePlan
from larder.torch import CachedMapDataset, ImportanceSampler
from rig.digests import Row, write
from rig.gateways import Running, Settings, finish, start
from rig.origin import FakeOrigin, OriginThread
from rig.processes import free_port, wait_until
from rig.v1 import ask
from tests.loader.making import BATCH, index_of, map_of
from tests.loader.test_processes import killed, shut_down

# The tests use four workers, even on machines with fewer cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
WORLD, WORKERS = 2, 4
ITEMS = 403
"""More than all workers read ahead."""
KEY = larder.Credentials("GWA", "gateway-secret-a")
SOON = 60.0
FORK = multiprocessing.get_context("fork")
Epoch = list[list[int]]
"""The ids of each mini-batch."""


def in_group(run: Callable[..., Any], rank: int, port: int, results: Any, arguments: tuple[Any, ...]) -> None:
    """Run one rank in the process group, and put its result or error into the queue."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    try:
        results.put((rank, run(rank, *arguments)))
    except BaseException as error:
        results.put((rank, RuntimeError(f"rank {rank}: {error!r}")))
    finally:
        distributed.destroy_process_group()


@contextmanager
def running_ranks(run: Callable[..., Any], *arguments: Any) -> Iterator[Callable[[], list[Any]]]:
    """Two training processes that know each other; gives what awaits their results, by rank."""
    results, port = FORK.Queue(), free_port()
    processes = [FORK.Process(target=in_group, args=(run, rank, port, results, arguments)) for rank in range(WORLD)]
    for process in processes:
        process.start()

    def join() -> list[Any]:
        found = dict(results.get(timeout=2 * SOON) for _ in processes)
        for one in found.values():
            if isinstance(one, RuntimeError):
                raise one
        return [found[rank] for rank in range(WORLD)]

    try:
        yield join
    finally:
        for process in processes:
            process.join(SOON)
            process.kill()


def ranks_of(run: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run two training processes of one group and return their results by rank."""
    with running_ranks(run, *arguments) as join:
        return join()


def made(unseen: float, items: int) -> tuple[ImportanceSampler, DataLoader[Any]]:
    """A sampler, and a loader with four workers of a dataset in memory."""
    dataset = map_of(items, transform=index_of, ids=True)
    sampler = ImportanceSampler(dataset, unseen=unseen, guard=False)
    return sampler, DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=WORKERS)


def step(sampler: ImportanceSampler, batch: Any) -> list[int]:
    """Train on a mini-batch, of which later items are harder; its ids."""
    ids, items = batch
    assert ids.tolist() == items.tolist()
    sampler.update(ids, torch.log1p(ids.double()))
    found: list[int] = ids.tolist()
    return found


def listed(state: dict[str, Any], items: int, unseen: float = 0.5) -> list[int]:
    """The drawn list of a saved state's epoch, whole."""
    plan = ImportancePlan(items, DrawRule(unseen))
    plan.load_state_dict(state)
    assert plan.drawn is not None
    order: list[int] = plan.drawn.order.tolist()
    return order


def flat(epoch: Epoch) -> list[int]:
    """The ids of an epoch in their order."""
    return [number for batch in epoch for number in batch]


def epochs_of(_: int, unseen: float, items: int, epochs: int) -> list[tuple[Epoch, list[dict[str, Any]]]]:
    """Train some epochs; of each the mini-batches, and the state after each of them."""
    sampler, loader = made(unseen, items)
    found = []
    for _ in range(epochs):
        came, states = [], []
        for batch in loader:
            came.append(step(sampler, batch))
            states.append(sampler.state_dict())
        found.append((came, states))
    return found


@pytest.mark.parametrize("unseen", [0.0, 0.5])
def test_shares_are_disjoint_and_together_the_drawn_list(unseen: float) -> None:
    """Rule: every entry of each epoch's list reaches one rank, in the list's order, regardless of the workers' read-ahead."""
    one, other = ranks_of(epochs_of, unseen, ITEMS, 3)
    for (mine, states), (others, _) in zip(one, other, strict=True):
        order = listed(states[0], ITEMS, unseen)
        assert len(order) == ITEMS + 1
        assert [flat(mine), flat(others)] == [order[0::2], order[1::2]]
        distinct = len(set(order))
        assert distinct == (ITEMS if unseen == 0 or states[0]["epoch"] == 0 else ITEMS - ITEMS // 2)


def resumed(rank: int, states: list[list[dict[str, Any]]], items: int) -> list[Epoch]:
    """The remaining steps of the epoch after each of the states."""
    found = []
    for state in states[rank]:
        sampler, loader = made(0.5, items)
        sampler.load_state_dict(state)
        found.append([step(sampler, batch) for batch in loader])
    return found


def test_resuming_at_any_batch_gives_the_rest() -> None:
    """Rule: new processes that load the states of any step continue with the next entry of the list, and after the last batch
    with the next list."""
    items = 35
    both = ranks_of(epochs_of, 0.5, items, 3)
    states = [[rank[0][1][-1], *rank[1][1]] for rank in both]
    rests = ranks_of(resumed, states, items)
    for rank, rest in zip(both, rests, strict=True):
        second, third = rank[1][0], rank[2][0]
        assert rest == [second[batches:] for batches in range(len(second))] + [third]


def until_a_worker_is_killed(rank: int, batches: int) -> tuple[Epoch, dict[str, Any]]:
    """Train an epoch and a part of the next, in which rank 0 loses a worker; that part, and the last state."""
    sampler, loader = made(0.5, ITEMS)
    for batch in loader:
        step(sampler, batch)
    iterator: Any = iter(loader)
    came = [step(sampler, next(iterator)) for _ in range(batches)]
    state = sampler.state_dict()
    if rank == 0:
        with killed(iterator._workers[1].pid):
            for batch in iterator:
                came.append(step(sampler, batch))
                state = sampler.state_dict()
    shut_down(iterator)
    return came, state


def test_after_a_killed_worker_ranks_go_on_from_one_step() -> None:
    """Rule: the rank with the killed worker raises. Restarted from states of one step, both ranks get the rest of the list: items
    that the dead worker had read ahead are neither lost nor repeated."""
    (mine, _), (others, state) = ranks_of(until_a_worker_is_killed, 3)
    rests = ranks_of(resumed, [[state], [state]], ITEMS)
    came = flat(mine[:3]) + flat(others) + [number for (rest,) in rests for number in flat(rest)]
    assert Counter(came) == Counter(listed(state, ITEMS))


def test_after_a_killed_worker_a_loop_goes_on_where_it_was() -> None:
    """Rule: without a restart, the sampler's own state gives the rest in the same loader."""
    sampler, loader = made(0.5, ITEMS)
    iterator: Any = iter(loader)
    with killed(step_and_worker(sampler, iterator)):
        for batch in iterator:
            step(sampler, batch)
    shut_down(iterator)
    state = sampler.state_dict()
    sampler.load_state_dict(state)
    rest = flat([step(sampler, batch) for batch in loader])
    assert rest == listed(state, ITEMS)[state["taken"] :]
    assert 0 < len(rest) < ITEMS


def step_and_worker(sampler: ImportanceSampler, iterator: Any) -> int:
    """Train on a mini-batch; the process of a worker."""
    step(sampler, next(iterator))
    worker: int = iterator._workers[2].pid
    return worker


# --- a killed gateway


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with all items, each its own number as text."""
    with OriginThread() as store:
        for number in range(ITEMS):
            store.put("data", f"numbers/{number}", b"%d" % number)
        yield store


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their digest file."""
    rows = [Row(hashlib.sha256(b"%d" % number).digest(), "data", f"numbers/{number}") for number in range(ITEMS)]
    return write(tmp_path_factory.mktemp("digests") / "numbers.parquet", rows)


def through(
    rank: int, endpoint: str, file: Path, events: dict[str, Any]
) -> tuple[list[tuple[Epoch, dict[str, Any]]], dict[str, Any]]:
    """Train three epochs, the second one while the gateway is killed, and begin another; the job lives until ``done``."""
    access = larder.Access(credentials=KEY)
    job = larder.Job(endpoint, "resnet", file, batch_size=BATCH, ranks=WORLD, rank=rank, caching="on", credentials=KEY)
    with job:
        dataset = CachedMapDataset(endpoint, file, transform=index_of, ids=True, job=job, access=access)
        sampler = ImportanceSampler(dataset, unseen=0.5, guard=False)
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=WORKERS)
        epochs = []
        for epoch in range(3):
            came = []
            for batch in loader:
                came.append(step(sampler, batch))
                if (epoch, len(came)) == (1, 3):
                    events[f"midway-{rank}"].set()
                    assert events["killed"].wait(SOON)
            epochs.append((came, sampler.state_dict()))
        next(iter(loader))
        events[f"trained-{rank}"].set()
        assert events["done"].wait(SOON)
        return epochs, job.stats()["importance"] if rank == 0 else {}


def kept_by(running: Running) -> set[object]:
    """The orders in which the fleet's plan keeps its datasets."""
    return {dataset.get("order") for dataset in ask(running, "GET", "/v1/plan").json["datasets"].values()}


def test_a_killed_gateway_changes_no_list(origin: FakeOrigin, file: Path, tmp_path: Path) -> None:
    """Rule: killing and restarting the gateway within an epoch does not change the reads of two ranks; the scores, which it had
    only in memory, are sent again in full, and it keeps the dataset by them."""
    names = ("midway-0", "midway-1", "killed", "trained-0", "trained-1", "done")
    events = {name: FORK.Event() for name in names}
    server = {"port": free_port()}
    settings = Settings(origin.endpoint, tmp_path / "cache", server=server, extra='\n[fleet]\nheartbeat = "100ms"\n')
    before = start(settings, tmp_path)
    with running_ranks(through, before.endpoint, file, events) as join:
        try:
            assert all(events[f"midway-{rank}"].wait(SOON) for rank in range(WORLD))
        finally:
            before.kill()
            before.process.stdout.close()
        events["killed"].set()
        after = start(settings, tmp_path)
        try:
            assert all(events[f"trained-{rank}"].wait(2 * SOON) for rank in range(WORLD))
            wait_until(lambda: after.metric("larder_importance_scored_items") == ITEMS, SOON, "scores of all items")
            wait_until(lambda: kept_by(after) == {"importance"}, SOON, "a plan by importance")
            events["done"].set()
            (mine, sent), (others, _) = join()
        finally:
            finish(after)
    assert sent["whole"] >= 2
    for (came, state), (others_came, _) in zip(mine, others, strict=True):
        order = listed(state, ITEMS)
        assert [flat(came), flat(others_came)] == [order[0::2], order[1::2]]
