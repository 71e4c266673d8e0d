"""The trainer's profiles of its stages; it follows the fleet's decision on the mark to store."""

from fake_jobs import job_at
from pipeline_steps import Adding, number, pipeline_of

from larder.pipelines.metering import ELEMENTS, ProfiledStages, ProfileMeter, StepMeter
from larder.pipelines.stages import StageCounts
from larder.training.heartbeat import PipelineDirective

DIGEST = "ab" * 32
STAGES = ProfiledStages(3, {2: DIGEST})


def counted(elements, seconds=0.002, size=100):
    """The counts of a pipeline of three stages, of which the second is a mark, after so many elements."""
    return {
        0: StageCounts(elements, 0.25 * seconds * elements, size * elements, elements),
        1: StageCounts(elements, 0.5 * seconds * elements),
        2: StageCounts(elements, 0.5 * seconds * elements, 2 * size * elements, elements),
        3: StageCounts(elements, seconds * elements, 3 * size * elements, elements),
    }


def summed(one, other):
    """The sum of both counts."""
    found = {stage: StageCounts() for stage in one}
    for part in (one, other):
        for stage, counts in part.items():
            found[stage].add(counts)
    return found


def test_a_profile_has_the_elements_since_the_last_one():
    """A profile has time per element, bytes and elements of each mark and of the end (Table 1); earlier elements do not count."""
    meter = ProfileMeter(STAGES)
    start = counted(50, seconds=1.0)
    assert meter.profile(start, 1) is None
    assert meter.profile(summed(start, counted(ELEMENTS - 1)), 1) is None
    profile = meter.profile(summed(start, counted(ELEMENTS)), 1)
    times = [profile["marks"][0].pop("active_time"), profile["end"].pop("active_time")]
    assert [round(each, 9) for each in times] == [0.001, 0.002]
    assert profile == {
        "items": ELEMENTS,
        "workers": 1,
        "cache": None,
        "end": {"stage": 3, "bytes_produced": 300 * ELEMENTS, "num_elements": ELEMENTS},
        "marks": [{"stage": 2, "bytes_produced": 200 * ELEMENTS, "num_elements": ELEMENTS, "fingerprint": DIGEST}],
    }


def test_a_profile_is_of_one_number_of_workers_and_one_mark():
    """Elements before a change of either do not count: workers compete for cores, and a mark in force saves work."""
    meter = ProfileMeter(STAGES)
    meter.profile(counted(0), 1)
    assert meter.profile(counted(ELEMENTS), 2) is None
    assert meter.profile(counted(2 * ELEMENTS - 1), 2) is None
    assert meter.profile(counted(2 * ELEMENTS), 0) is None
    assert meter.profile(counted(3 * ELEMENTS), 2) is None
    meter.begin(2)
    assert meter.profile(counted(4 * ELEMENTS), 2) is None
    assert meter.profile(counted(5 * ELEMENTS), 2)["cache"] == 2


def test_short_epochs_are_profiled_together():
    """Elements of several epochs make a profile, without those of each epoch's first batch, unless mark or workers changed."""
    meter, short = ProfileMeter(STAGES), ELEMENTS // 2
    seen = []
    for epoch in range(4):
        meter.begin(None)
        seen += [meter.profile(counted((short + 1) * epoch + each), 1) for each in (1, short + 1)]
    assert [each and each["end"]["num_elements"] for each in seen] == [None, None, None, ELEMENTS] * 2
    assert round(seen[3]["end"]["active_time"], 9) == 0.002
    meter.begin(None)
    assert [meter.profile(counted(1000 + each), 1) for each in (0, short)] == [None, None]
    meter.begin(2)
    assert [meter.profile(counted(2000 + each), 1) for each in (0, short)] == [None, None]
    meter.begin(2)
    assert [meter.profile(counted(3000 + each), 2) for each in (0, short)] == [None, None]


def test_a_profile_has_what_reading_results_took():
    """Only results of the mark in force whose reading was timed; their bytes are those of the mark's elements."""
    meter = ProfileMeter(STAGES)
    meter.begin(2)
    seen = [counted(0), counted(ELEMENTS), counted(2 * ELEMENTS), counted(3 * ELEMENTS)]
    seen[2][2].timed, seen[2][2].reading, seen[2][2].busy = 50, 0.75, 0.25
    seen[3][2].timed, seen[3][2].reading, seen[3][2].busy = 50, 0.75, 0.25
    profiles = [meter.profile(each, 1) for each in seen]
    times = {"num_elements": 50, "bytes": 200 * 50, "seconds": 0.75, "busy": 0.25}
    assert [each and each.get("read") for each in profiles] == [None, None, times, None]


def test_a_pipeline_without_stages_has_no_profile():
    """Items that are only read need no decision."""
    meter = ProfileMeter(ProfiledStages(0, {}))
    assert [meter.profile({0: StageCounts(each)}, 1) for each in (0, 1000)] == [None, None]


def test_a_pipeline_reports_its_stages_and_follows_the_decision(jobs):
    """The mark of the fleet's answer is in force from the next epoch on, also with a number of workers that the user set."""
    jobs.cache, jobs.reason = 2, "fastest"
    with job_at(jobs, batch_size=2) as job:
        pipeline = pipeline_of(4 * ELEMENTS, job=job, workers=0).map(number).autocache().map(float).batch(2)
        while job.pipeline_directive.cache is None:
            list(pipeline)
        while not any(beat.get("profile", {}).get("cache") == 2 for beat in jobs.beats):
            list(pipeline)
    profiles = [beat["profile"] for beat in jobs.beats if "profile" in beat]
    assert profiles[0]["cache"] is None
    (mark,) = profiles[0]["marks"]
    assert (mark["stage"], len(mark["fingerprint"])) == (2, 64)
    assert profiles[0]["end"]["stage"] == 3


def test_a_pipeline_begins_when_the_fleet_has_decided(jobs):
    """The leader decides after the first heartbeat was answered. So the rank asks again, and its first epoch has the decision."""
    jobs.cache, jobs.reason, jobs.deciding = 2, "shared", 2
    with job_at(jobs, batch_size=2) as job:
        pipeline = pipeline_of(40, job=job, workers=0).map(number).autocache().batch(2)
        next(iter(pipeline))
        assert job.pipeline_directive == (None, 2, "shared")
    first = [beat["profile"] for beat in jobs.beats if "profile" in beat]
    assert first[0]["end"]["num_elements"] == first[1]["end"]["num_elements"] == 0


def test_a_pipeline_reports_its_position(jobs):
    """Heartbeats have the epoch: the fleet knows an epoch that stores."""
    with job_at(jobs, batch_size=2) as job:
        pipeline = pipeline_of(40, job=job, workers=0).map(number).autocache().batch(2)
        pipeline.set_epoch(3)
        while not any(beat["epoch"] > 3 for beat in jobs.beats):
            list(pipeline)
    first = next(beat for beat in jobs.beats if "profile" in beat)
    assert first["epoch"] == 3


def test_functions_that_change_are_reported_anew(jobs):
    """The results of other functions are another pipeline's: the next epoch begins with a profile under the new fingerprint."""
    adding = Adding(0)
    with job_at(jobs, batch_size=2) as job:
        pipeline = pipeline_of(40, job=job, workers=0).map(adding).autocache().batch(2)
        list(pipeline)
        list(pipeline)
        adding.more = 1
        list(pipeline)
    begun = [beat["profile"] for beat in jobs.beats if beat.get("profile", {}).get("end", {}).get("num_elements") == 0]
    first, second = (profile["marks"][0]["fingerprint"] for profile in begun)
    assert first != second


def test_a_mark_that_the_user_sets_wins(jobs):
    """After ``set_cache`` the fleet's decisions are not followed."""
    jobs.cache, jobs.reason = 2, "fastest"
    with job_at(jobs, batch_size=2) as job:
        pipeline = pipeline_of(4 * ELEMENTS, job=job, workers=0).map(number).autocache().map(float).batch(2)
        pipeline.set_cache(None)
        while sum("profile" in beat for beat in jobs.beats) < 3:
            list(pipeline)
        assert job.pipeline_directive.cache == 2
    assert {beat["profile"]["cache"] for beat in jobs.beats if "profile" in beat} == {None}


def test_what_is_not_readable_changes_no_instruction():
    """Answers of another version, or of something else, leave the last instructions in force."""
    now = PipelineDirective(3, 2, "fastest")
    wrong = [None, [], {}, {"workers": 0, "cache": 1}, {"workers": True}, {"cache": "2", "reason": "x"}, {"reason": 7}]
    assert [now.after(each) for each in wrong] == [now] * len(wrong)
    assert now.after({"workers": None, "cache": None, "reason": "no-room"}) == (3, None, "no-room")
    assert now.after({"workers": 5}) == (5, 2, "fastest")


def test_a_step_lasts_from_one_request_to_the_next():
    """A step has its seconds, its waiting seconds, and the reads meanwhile; the first batch of an epoch is not a step."""
    meter = StepMeter(1)
    ended = []
    for epoch in range(2):
        meter.begin()
        for batch in range(4):
            now, read = 100 * (epoch + 1) + 3.0 * batch, 10 * (4 * epoch + batch)
            ended.append(meter.asked(now, StageCounts(read, hits=read // 2)))
            meter.arrived(1.0)
    assert ended == [None, None, (3.0, 1.0, 10, 5), (3.0, 1.0, 10, 5)] * 2


def test_elements_that_are_not_batched_make_steps_together():
    """Without batches, a mini-batch is as many elements as the job says."""
    meter = StepMeter(3)
    ended = []
    for element in range(10):
        ended.append(meter.asked(10.0 + element, StageCounts(element)))
        meter.arrived(0.25)
    assert [each for each in ended if each] == [(3.0, 0.75, 3, 0)] * 2


def test_a_pipeline_reports_its_steps(jobs):
    """Batches are timed for the fleet with their items, so that a job whose gain is measured gets past the measurement."""
    with job_at(jobs, batch_size=2) as job:
        pipeline = pipeline_of(40, job=job, workers=0).map(number).batch(2)
        while job.stats()["phases"].get("steady", {}).get("steps", 0) < 30:
            list(pipeline)
        totals = job.stats()["phases"]["steady"]
    assert totals["items"] >= totals["steps"]
    assert 0 <= totals["waited"] <= totals["seconds"]
