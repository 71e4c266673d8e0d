"""The mode of a dataset changes while jobs read it: no item is lost or delivered twice, and the cache follows the mode."""

from __future__ import annotations

from pathlib import Path

from rig.consistency import files_of
from rig.gateways import Settings, gateway
from rig.origin import OriginThread
from rig.world import eventually
from tests.demand import BATCH, Schedule, TrainingJob, dataset_of, run

ITEMS, SIZE = 320, 2048
CAPACITY = ITEMS * SIZE // 2
MODES = ("full", "part", "none", "part", "full")


def test_jobs_read_on_while_the_mode_changes(tmp_path: Path) -> None:
    """Rule: from full to part, to none and back, each in the middle of an epoch: every epoch is exact and the cache never exceeds
    its capacity. In mode none the origin is read for all and nothing stored; afterwards what was cached saves reads again."""
    reads, stored = [], []  # what each epoch read, and the blobs before and after its second half
    with OriginThread() as origin:
        data = dataset_of(origin, tmp_path, ITEMS, SIZE)
        settings = Settings(origin.endpoint, tmp_path / "cache", str(CAPACITY))
        with gateway(settings, tmp_path) as running:
            data.register(running, MODES[0])
            jobs = [Schedule(TrainingJob(f"job-{number}", [running], data, len(MODES))) for number in range(2)]
            for epoch, mode in enumerate(MODES):
                for _ in range(ITEMS // BATCH // 2):
                    for schedule in jobs:
                        schedule.job.step()
                data.register(running, mode)
                eventually(
                    lambda: running.metric("larder_fills_active"), lambda fills: fills == 0, "earlier reads are stored"
                )
                before, blobs = origin.count("GET", "/data/"), len(files_of(tmp_path / "cache"))
                run(jobs, jobs[0].job, epoch)
                reads.append(origin.count("GET", "/data/") - before)
                stored.append((blobs, len(files_of(tmp_path / "cache"))))
                assert running.metric("larder_cache_bytes") <= CAPACITY
            for schedule in jobs:
                assert [sorted(order) for order in schedule.job.orders] == [list(range(ITEMS))] * len(MODES)
    none, again = reads[2:4]
    assert none > 0.75 * ITEMS  # two jobs that want one item at the same moment read it together
    blobs, left = stored[2]
    assert blobs >= left > 0.4 * ITEMS
    assert again < 0.6 * none
