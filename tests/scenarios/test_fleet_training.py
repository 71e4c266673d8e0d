"""Two training jobs read through a fleet while Redis goes away: every epoch has every item exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from larder import Access, Credentials, Job, Loader
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, fleet
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.world import KIB, SOON
from tests.scenarios.fleets import doubted

ITEMS, BATCH, EPOCHS = 240, 8, 3
QUICK = {"heartbeat": "200ms", "expire": "2s"}
KEYS = Credentials("GWA", "gateway-secret-a")


@dataclass
class Training:
    """One job in a thread; ``hold`` is asked before each batch is used, and may wait."""

    name: str
    gateway: Running
    data: Stock
    hold: Callable[[int, int], None]
    seen: list[Counter[int]] = field(default_factory=lambda: [Counter() for _ in range(EPOCHS)])
    failures: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        """All epochs."""
        try:
            self._run()
        except BaseException as failure:
            self.failures.append(failure)

    def _run(self) -> None:
        with Job(
            self.gateway.endpoint, self.name, self.data.name, batch_size=BATCH, caching="on", credentials=KEYS
        ) as job:
            access = Access(credentials=KEYS)
            loader = Loader(self.gateway.endpoint, self.data.name, batch_size=BATCH, job=job, access=access)
            for epoch in range(EPOCHS):
                for batch in job.watch(loader.epoch(epoch)):
                    for index, body in zip(batch.indices, batch.data, strict=True):
                        assert bytes(body) == self.data.bodies[int(index)]
                        self.seen[epoch][int(index)] += 1
                    self.hold(epoch, self.seen[epoch].total())


def test_redis_is_killed_and_comes_back_in_the_middle_of_training(origin, tmp_path):
    """Rule: batches come on while Redis is away; an epoch begins when it is back, in one order for the job; nothing is lost,
    nothing comes twice, and no item is read from the origin more than once."""
    away = threading.Event()

    def hold(epoch: int, items: int) -> None:
        if epoch == 0 and items >= ITEMS // 2:
            assert away.wait(SOON)

    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 2, tmp_path, fleet=QUICK) as gateways:
        data = stock(origin.s3, tmp_path, "training", bytes_of(ITEMS, KIB, "training"))
        data.register(gateways[0])
        jobs = [Training(f"job-{number}", running, data, hold) for number, running in enumerate(gateways)]
        threads = [threading.Thread(target=job.run) for job in jobs]
        for thread in threads:
            thread.start()
        await_items(jobs, 0, ITEMS // 2)
        redis.kill()
        away.set()
        await_items(jobs, 0, ITEMS)
        redis.start()
        for thread in threads:
            thread.join()
    assert [job.failures for job in jobs] == [[], []]
    assert [job.seen for job in jobs] == [[Counter(range(ITEMS))] * EPOCHS] * 2
    assert origin.count("GET", "/data/training/") <= ITEMS * (1 + len(doubted(gateways)))


def await_items(jobs: list[Training], epoch: int, items: int) -> None:
    """Wait until each job has had so many items of an epoch, or one has failed."""
    wait_until(
        lambda: any(job.failures for job in jobs) or all(job.seen[epoch].total() >= items for job in jobs),
        SOON,
        f"{items} items of epoch {epoch} at every job",
    )
