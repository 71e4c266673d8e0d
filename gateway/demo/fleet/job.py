"""One training job of the fleet: loads epochs on command, checks that each item came exactly once, and reports.

It is a separate process, like any job. Run as ``python -m gateway.demo.fleet.job TASK RESULTS``: TASK is a file with a
``JobTask``, RESULTS gets a line with a ``JobProgress`` after each batch. It begins epoch N when the file ``go-N`` exists, so that
the origin's requests can be counted between two epochs.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gateway.demo.clients import VISION
from gateway.demo.plan import Message, check_once, read_task
from gateway.demo.processes import DemoFailed
from larder import Access, Credentials, Job, Loader


class JobTask(Message):
    """The task of a job.

    Args:
        job: its name.
        endpoint: address of a gateway, or of nginx.
        digest_file: of the dataset.
        digests: the SHA-256 of every item, in hexadecimal, by key.
        batch_size: items of a mini-batch.
        step: seconds that a step computes.
        epochs: number of epochs.
        seed: of the order.
    """

    job: str
    endpoint: str
    digest_file: str
    digests: dict[str, str]
    batch_size: int
    step: float
    epochs: int
    seed: int


class JobProgress(Message):
    """A job's progress in an epoch.

    Args:
        epoch: its number, from 0.
        items: received so far.
        hits: of these, in the cache of the fleet when requested.
        joined: of these, already being fetched when requested.
        seconds: since the beginning of the epoch.
        waited: of these, spent waiting for items.
        over: whether the epoch is complete.
    """

    epoch: int
    items: int = 0
    hits: int = 0
    joined: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    over: bool = False


def go_file(folder: Path, epoch: int) -> Path:
    """The file whose existence starts an epoch."""
    return folder / f"go-{epoch}"


def work(order: JobTask, folder: Path, results: Path) -> None:
    """Load all epochs.

    Raises:
        DemoFailed: an item did not come exactly once in an epoch, or its bytes were wrong.
    """
    credentials = Credentials(VISION.access_key_id, VISION.secret_access_key)
    job = Job(
        order.endpoint, order.job, order.digest_file, batch_size=order.batch_size, caching="on", credentials=credentials
    )
    loader = Loader(
        order.endpoint,
        order.digest_file,
        batch_size=order.batch_size,
        seed=order.seed,
        job=job,
        access=Access(credentials=credentials),
    )
    with job, results.open("w", buffering=1) as lines:
        for epoch in range(order.epochs):
            while not go_file(folder, epoch).exists():
                time.sleep(0.01)
            _load(order, job, loader, epoch, lines.write)


def _load(order: JobTask, job: Job, loader: Loader, epoch: int, say: Callable[[str], object]) -> None:
    before, begun, waited = loader.stats.as_dict(), time.perf_counter(), 0.0
    seen: Counter[str] = Counter()

    def tell(over: bool) -> None:
        now = loader.stats.as_dict()
        hits, joined = (int(now[name] - before[name]) for name in ("hits", "joined"))
        progress = JobProgress(
            epoch=epoch,
            items=seen.total(),
            hits=hits,
            joined=joined,
            seconds=time.perf_counter() - begun,
            waited=waited,
            over=over,
        )
        say(progress.model_dump_json() + "\n")

    asked = time.perf_counter()
    for batch in job.watch(loader.epoch(epoch)):
        waited += time.perf_counter() - asked
        for index, body in zip(batch.indices, batch.data, strict=True):
            key = loader.keys[int(index)][1]
            if hashlib.sha256(body).hexdigest() != order.digests.get(key):
                raise DemoFailed(f"{key} was delivered with other bytes than those that were stored")
            seen[key] += 1
        time.sleep(order.step)
        tell(over=False)
        asked = time.perf_counter()
    check_once(order.job, epoch, seen, order.digests)
    tell(over=True)


if __name__ == "__main__":
    try:
        work(read_task(JobTask, Path(sys.argv[1])), Path(sys.argv[1]).parent, Path(sys.argv[2]))
    except DemoFailed as failure:
        sys.exit(str(failure))
