"""Two jobs that compute the same results while Redis, which has their claims, is lost."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from rig.batches import bytes_of, stock
from rig.gateways import Settings, gateway
from rig.origin import OriginThread
from rig.processes import wait_until
from rig.redis_server import RedisServer
from tests.pipelines.result_steps import Noting, train
from tests.pipelines.test_pipeline_results import ITEMS, SIZE, WHOLE, access, expected, pipeline, values

WITHIN = 120.0
"""Seconds for both jobs: far more than computing everything twice takes, and less than the longest claim."""


def killed(redis: RedisServer, _: ExitStack) -> None:
    """Kill Redis for the rest of the test."""
    redis.kill()


def restarted(redis: RedisServer, _: ExitStack) -> None:
    """Restart Redis without its claims and scripts."""
    redis.kill()
    redis.start()


def paused(redis: RedisServer, rest: ExitStack) -> None:
    """Pause Redis: it keeps its connections and answers nothing."""
    standing: AbstractContextManager[None] = redis.paused()
    rest.enter_context(standing)


@pytest.mark.parametrize("lose", [killed, restarted, paused])
def test_both_jobs_have_every_element(tmp_path: Path, lose: Callable[[RedisServer, ExitStack], None]) -> None:
    """Rule: no element is lost, and each is computed at most twice. No job waits for a lost claim. Computed elements are stored:
    a third job computes nothing."""
    step = Noting(tmp_path / "computed", seconds=0.04)
    context = multiprocessing.get_context("forkserver")
    found = context.SimpleQueue()
    with ExitStack() as rest:
        origin = rest.enter_context(OriginThread())
        redis = rest.enter_context(RedisServer())
        running = rest.enter_context(gateway(Settings(origin.endpoint, tmp_path / "cache", redis=redis.url), tmp_path))
        items = stock(origin, tmp_path / "files", "claims", bytes_of(ITEMS, SIZE, "claims"))
        items.register(running)
        jobs: list[BaseProcess] = [
            context.Process(target=train, args=(running.endpoint, items.name, step, access(), found)) for _ in range(2)
        ]
        for job in jobs:
            job.start()
            rest.callback(job.kill)
        wait_until(
            lambda: sum(step.computed().values()) >= 10 and redis.ask("KEYS", "*claims:*"), WITHIN, "claims of the jobs"
        )
        lose(redis, rest)
        for job in jobs:
            job.join(WITHIN)
        assert [job.exitcode for job in jobs] == [0, 0]
        sums = [(index, sum(data)) for index, data in sorted(expected(items).items())]
        assert [found.get(), found.get()] == [sums, sums]
        assert step.computed().keys() == WHOLE.keys()
        assert max(step.computed().values()) <= 2
        before = step.computed()
        assert values(pipeline(running, items, step)) == expected(items)
        assert step.computed() == before
