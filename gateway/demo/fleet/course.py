"""The steps of the fleet demo, in order. Importing it needs the extra ``demo-reads`` and the client's ``digest``."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from gateway.demo import data
from gateway.demo.clients import ORIGIN_KEYS, VISION, origin_requests
from gateway.demo.data import BUCKET
from gateway.demo.fleet import tables
from gateway.demo.fleet.job import JobProgress, JobTask, go_file
from gateway.demo.fleet.parts import DemoFleet, NodeProcess, build, describe, ended
from gateway.demo.interrupts import Interrupts
from gateway.demo.plan import read_results
from gateway.demo.processes import Child, DemoFailed
from gateway.demo.reads import store
from gateway.demo.table import console, farewell
from gateway.model.units import format_size
from larder import Credentials, LarderError
from larder import digest as digest_files

JOBS = ("job-a", "job-b")
BATCH_SIZE = 32
STEP = 0.02
"""Seconds that a job computes for each batch; 57 batches are an epoch."""
EPOCHS = 4
KILLED_IN = 2
"""The epoch in which a gateway is killed, ..."""
KILLED_AT = 1 / 3
"""... when both jobs have had this share of it."""
SHARE = 0.75
"""The share of the data that each node can cache: one node cannot hold all of it, two easily can."""
SLACK = 0.02
"""How far reads at the origin may exceed the minimum, as a share of the data."""
PATIENCE = 600.0
"""Seconds that an epoch may take."""


@dataclass(slots=True)
class Running:
    """A running job."""

    name: str
    process: Child
    results: Path

    def progress(self) -> list[JobProgress]:
        """Its reports so far.

        Raises:
            DemoFailed: the job has failed.
        """
        if self.process.process.poll():
            raise DemoFailed(f"{self.name} failed: {self.process.log.read_text(errors='replace')[-2000:]}")
        return read_results(JobProgress, self.results)

    def at(self, epoch: int) -> JobProgress:
        """Its progress in an epoch."""
        said = [step for step in self.progress() if step.epoch == epoch]
        return said[-1] if said else JobProgress(epoch=epoch)


def take(keep: bool, port: int, nginx: Path | None, stack: ExitStack, interrupts: Interrupts) -> None:
    """Start the parts, run two jobs, kill a gateway while they run, and print how to continue. The arguments are the entry
    point's.

    Raises:
        DemoFailed: a claim of the demo did not hold.
    """
    images = data.digits()
    size = data.unique_size(images)
    with console.status("starting an origin (moto), Redis and three gateways ..."):
        fleet = build(int(size * SHARE), port, nginx, stack, interrupts)
    console.print(f"[bold]Larder[/]: {describe(fleet)}", soft_wrap=True)
    digest_file = _describe_data(fleet, images)
    room = format_size(int(size * SHARE))
    console.print(f"  {len(images):,} images ({format_size(size)}); no node caches more than {room} of them")
    jobs = [_start_job(fleet, number, digest_file, images) for number in range(len(JOBS))]
    rows = [_epoch(fleet, jobs, epoch, len(images)) for epoch in range(EPOCHS)]
    check(rows, len(images))
    console.print()
    console.print(tables.epochs(rows, JOBS))
    console.print(tables.in_words(rows, len(images)), soft_wrap=True)
    console.print(tables.nodes([(node, node.fill() if node.alive else None) for node in fleet.nodes]))
    _farewell(fleet, keep)
    if keep:
        raise ended(fleet)


def _describe_data(fleet: DemoFleet, images: Mapping[str, bytes]) -> Path:
    """Put the images into the origin, bypassing the gateways, and list them in a digest file."""
    store("storing images at the origin", fleet.origin, images)
    file = fleet.ground.folder / "digits.parquet"
    credentials = Credentials(ORIGIN_KEYS.access_key_id, ORIGIN_KEYS.secret_access_key)
    try:
        digest_files.build(f"s3://{BUCKET}/digits/", file, endpoint=fleet.origin, credentials=credentials)
    except LarderError as error:
        raise DemoFailed(f"the digest file could not be built: {error}") from error
    return file


def _start_job(fleet: DemoFleet, number: int, digest_file: Path, images: Mapping[str, bytes]) -> Running:
    name, folder = JOBS[number], fleet.ground.folder
    digests = {key: hashlib.sha256(body).hexdigest() for key, body in images.items()}
    order = JobTask(
        job=name,
        endpoint=fleet.endpoint(number),
        digest_file=str(digest_file),
        digests=digests,
        batch_size=BATCH_SIZE,
        step=STEP,
        epochs=EPOCHS,
        seed=number,
    )
    file, results = folder / f"{name}.json", folder / f"{name}.jsonl"
    file.write_text(order.model_dump_json())
    command = (sys.executable, "-m", "gateway.demo.fleet.job", str(file), str(results))
    return Running(name, fleet.ground.start(name, command), results)


def _epoch(fleet: DemoFleet, jobs: list[Running], epoch: int, items: int) -> tables.Row:
    """Run one epoch of the jobs, and kill a gateway in the epoch chosen for it."""
    before, deadline = origin_requests(fleet.origin), time.monotonic() + PATIENCE
    lost: int | None = None
    if not console.is_terminal:
        console.print(f"  epoch {epoch}", soft_wrap=True)
    columns = (TextColumn("  {task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = [bars.add_task(f"epoch {epoch}, {job.name}", total=items) for job in jobs]
        go_file(fleet.ground.folder, epoch).touch()
        while True:
            now = [job.at(epoch) for job in jobs]
            for task, at in zip(tasks, now, strict=True):
                bars.update(task, completed=at.items)
            if epoch == KILLED_IN and lost is None and all(at.items > KILLED_AT * items for at in now):
                lost = _kill(fleet.nodes[-1])
            if all(at.over for at in now):
                break
            if time.monotonic() > deadline:
                raise DemoFailed(f"epoch {epoch} was not over after {PATIENCE:.0f} s: {now}")
            time.sleep(0.02)
    return tables.Row(epoch, tuple(now), origin_requests(fleet.origin) - before, lost)


def _kill(node: NodeProcess) -> int:
    """Kill a gateway; returns the number of items lost with it."""
    fill = node.fill()
    node.kill()
    return fill.blobs


def check(rows: Sequence[tables.Row], items: int) -> None:
    """Check the numbers: each item is read from the origin once for both jobs and all nodes, and once more if the node that had
    it dies.

    Raises:
        DemoFailed: the numbers differ.
    """
    lost = sum(row.lost or 0 for row in rows)
    reads = [row.origin_reads for row in rows]
    allowed = {"the first epoch": (reads[0], items), "the second": (reads[1], 0), "those after": (sum(reads[2:]), lost)}
    for what, (asked, most) in allowed.items():
        if asked > most + SLACK * items:
            raise DemoFailed(f"{asked:,} requests at the origin in {what}, expected at most {most:,}: {reads}")
    if not lost:
        raise DemoFailed("no gateway was killed, or it held nothing")


def _farewell(fleet: DemoFleet, keep: bool) -> None:
    living = [node.endpoint for node in fleet.nodes if node.alive]
    lines = [
        f"export AWS_ENDPOINT_URL={fleet.balancer or living[0]} AWS_DEFAULT_REGION=us-east-1",
        f"export AWS_ACCESS_KEY_ID={VISION.access_key_id} AWS_SECRET_ACCESS_KEY={VISION.secret_access_key}",
        f"aws s3 ls s3://{BUCKET}/digits/",
        *(f"curl {endpoint}/-/metrics" for endpoint in living),
    ]
    farewell(keep, "Running until Ctrl-C.", lines)
