"""The trainer's measurements for the fleet; it follows the fleet's number of workers."""

from itertools import count

from fake_jobs import job_at
from pipeline_steps import number, pipeline_of, whole

from larder.pipelines.metering import BATCHES, PAUSE, BatchMeter


def measured(meter, batches, workers, seconds=1.0, ready=2.0, clock=None):
    """The reports of so many batches, with their places."""
    clock = clock or count(1)
    found = []
    for place in range(batches):
        report = meter.batch(next(clock) * seconds, ready, workers)
        if report is not None:
            found.append((place, report))
    return found


def test_a_report_is_the_mean_of_a_hundred_batches():
    """The first batch of an epoch has nothing before it that its time could be counted from."""
    (first, report), (second, _) = measured(BatchMeter(), 2 * BATCHES + 1, 3, seconds=0.5)
    assert (first, second) == (BATCHES, 2 * BATCHES)
    assert report == (0.5, 2.0, 3, None)


def test_batches_after_a_change_do_not_count():
    """The measurement begins again, after a pause that starts when the new workers are ready."""
    meter, clock = BatchMeter(), count(1)
    assert measured(meter, BATCHES // 2, 1, clock=clock) == []
    assert measured(meter, 1000, 0, clock=clock) == []
    ((place, report),) = measured(meter, PAUSE + BATCHES, 2, clock=clock)
    assert (place, report.workers) == (PAUSE + BATCHES - 1, 2)


def test_the_time_between_epochs_is_not_a_batchs():
    """An evaluation between two epochs does not make batches look slow."""
    meter = BatchMeter()
    measured(meter, 60, 1)
    meter.begin()
    ((_, report),) = measured(meter, 60, 1, clock=count(10_000))
    assert report.batch_time == 1.0


def test_a_pipeline_begins_with_one_worker_and_follows_the_fleet(jobs):
    """Reports travel in heartbeats; the number that comes back is that of the next batches, and every element comes once."""
    jobs.workers = 2
    with job_at(jobs, batch_size=2) as job:
        pipeline = pipeline_of(1000, job=job, workers=None).map(number).batch(2)
        seen = []
        while pipeline.stats()["workers"] != 2:
            came = []
            for batch in pipeline:
                came += batch.tolist()
                seen.append(pipeline.stats()["workers"])
            assert whole(1000) == dict.fromkeys(came, 1)
        pipeline.close()
    reports = [beat["pipeline"] for beat in jobs.beats if "pipeline" in beat]
    assert seen[0] == reports[0]["workers"] == 1
    assert reports[0]["batch_time"] > 0


def test_a_number_that_the_user_sets_wins(jobs):
    """With ``workers=`` or ``scale`` no batches are reported, and no number is followed."""
    jobs.workers = 5
    with job_at(jobs, batch_size=2) as job:
        pipeline = pipeline_of(600, job=job, workers=0).map(number).batch(2)
        list(pipeline)
        jobs.wait(lambda: len(jobs.beats) > 1)
    assert all("pipeline" not in beat for beat in jobs.beats)
    assert pipeline.stats()["workers"] == 1
