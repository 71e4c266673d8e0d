"""Sending importance to the gateways: changes only, to their homes, in full after a loss, never delaying training."""

import threading
from contextlib import ExitStack

import numpy as np
import pytest
from fake_gateway import ID, FakeBatchGateway, Store, key_of, serving
from fake_jobs import KEY, FakeJobs, job_at

import larder
from larder.base.ring import Ring
from larder.http.api import Busy
from larder.training.heartbeat import HeartbeatThread
from larder.training.importance import ImportanceReport, ImportanceSender
from larder.training.importance_wire import coarse

N = 200
DATASET = larder.DatasetInfo("digits", ID, N, caching="full")
NAMES = ("gw-1", "gw-2", "gw-3")


def report(epoch=1, *, scored=range(N), listed=range(N), scale=1.0):
    """Scores of some items, each its own, and a list with some items, the even ones twice."""
    scores, counts = np.full(N, np.nan, np.float16), np.zeros(N, np.intp)
    scores[list(scored)] = np.log(np.array(list(scored)) * scale + 10)
    counts[list(listed)] = [1 + (item % 2 == 0) for item in listed]
    return ImportanceReport(epoch, scores, counts)


def scores_in(found):
    """The scores of a report in the sent precision, by item."""
    return {item: float(score) for item, score in enumerate(coarse(found.scores)) if not np.isnan(score)}


def counts_in(found):
    """The counts of a report, by item."""
    return {item: int(count) for item, count in enumerate(found.counts) if count}


@pytest.fixture
def sender(jobs):
    """A sender of a job whose thread does not run; the job is registered."""
    heartbeat = job_at(jobs)._heartbeat
    heartbeat.beat()
    yield ImportanceSender(heartbeat, DATASET)
    heartbeat.stopped.set()


def test_the_first_report_is_whole(jobs, sender):
    """Rule: everything that is known, and the list; of the dataset by its id."""
    first = report(scored=range(0, N, 3))
    sender.offer(first)
    sender.send()
    (part,) = jobs.importance.parts
    assert (part.whole, part.of_all, part.base, part.epoch, part.items) == (True, True, 0, 1, N)
    assert (part.scores, part.counts) == (scores_in(first), counts_in(first))
    assert jobs.importance.datasets == [ID]


def test_later_reports_have_what_changed(jobs, sender):
    """Rule: a part continues the one before with new scores only; its list is complete."""
    sender.offer(report())
    sender.send()
    second = report(2, listed=[3, 4])
    second.scores[7] = 2.5
    sender.offer(second)
    sender.send()
    first, part = jobs.importance.parts
    assert (part.whole, part.base, part.epoch) == (False, first.sequence, 2)
    assert (part.scores, part.counts) == ({7: 2.5}, {3: 1, 4: 2})
    assert jobs.importance.scores == scores_in(second)


def test_nothing_is_sent_without_a_new_report(jobs, sender):
    """Rule: a heartbeat after a report that was received sends nothing."""
    sender.send()
    sender.offer(report())
    sender.send()
    sender.send()
    assert len(jobs.importance.parts) == 1


def test_a_gateway_that_forgot_gets_it_whole(jobs, sender):
    """Rule: after "unknown base", the same report follows whole, at once."""
    sender.offer(report())
    sender.send()
    jobs.importance.forget()
    second = report(2, scale=2.0)
    sender.offer(second)
    sender.send()
    assert [part.whole for part in jobs.importance.parts] == [True, False, True]
    assert jobs.importance.scores == scores_in(second)
    assert sender.counts == {"reports": 2, "parts": 2, "whole": 2, "bytes": sender.counts["bytes"], "failed": 0}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_gateway_gets_it_after_the_next_heartbeat(jobs, sender, status):
    """Rule: a temporary failure is counted, and the part is sent again."""
    jobs.importance.refusals.append((status, "SlowDown"))
    sender.offer(report())
    with pytest.raises(Busy):
        sender.send()
    assert (sender.counts["failed"], jobs.importance.held) == (1, 0)
    sender.send()
    assert jobs.importance.scores == scores_in(report())
    assert len({part.sequence for part in jobs.importance.parts}) == 1


def test_what_was_not_received_is_in_the_next_report(jobs, sender):
    """Rule: a report takes the place of one that failed, with the changes of both."""
    sender.offer(report(1, scored=[1, 2]))
    sender.send()
    jobs.importance.refusals.append((503, "SlowDown"))
    sender.offer(report(2, scored=[1, 2, 3]))
    with pytest.raises(Busy):
        sender.send()
    last = report(3, scored=[1, 2, 3, 4], listed=[9])
    sender.offer(last)
    sender.send()
    assert jobs.importance.parts[-1].scores.keys() == {3, 4}
    assert (jobs.importance.scores, jobs.importance.listed) == (scores_in(last), {9: 1})


@pytest.mark.parametrize(("status", "code"), [(400, "InvalidPart"), (413, "TooLarge"), (404, "UnknownAddress")])
def test_a_refused_report_is_dropped(jobs, sender, status, code):
    """Rule: a refused report, as by an older gateway, is not sent again; the next epoch tries again."""
    jobs.importance.refusals.append((status, code))
    sender.offer(report())
    with pytest.raises(larder.RequestRefused, match=code):
        sender.send()
    sender.send()
    assert len(jobs.importance.parts) == 1
    sender.offer(report(2))
    sender.send()
    assert jobs.importance.scores == scores_in(report(2))


def test_a_fleet_that_forgot_the_job(jobs, sender):
    """Rule: the job is registered again, and everything follows whole under a new number, without a new report."""
    sender.offer(report())
    sender.send()
    jobs.known.clear()
    jobs.importance.forget()
    sender.offer(report(2))
    sender.send()  # finds the job unknown, and registers it
    sender.send()
    assert len(jobs.registrations) == 2
    assert jobs.importance.scores == scores_in(report(2))
    assert jobs.importance.parts[-1].whole


def test_a_dataset_that_is_gone(jobs, sender):
    """Rule: a dataset that a gateway no longer knows is registered again and all scores are sent in full, without an error in
    training."""
    jobs.importance.refusals.append((404, "UnknownDataset"))
    sender.offer(report())
    sender.send()
    assert (len(jobs.registrations), jobs.importance.scores) == (2, {})
    sender.send()
    assert jobs.importance.parts[-1].whole
    assert jobs.importance.scores == scores_in(report())


def test_a_restarted_job_does_not_repeat_numbers(jobs, sender):
    """Rule: a gateway that holds a report of the job's previous run accepts the first one of the next run."""
    sender.offer(report())
    sender.send()
    again = ImportanceSender(sender._heartbeat, DATASET)
    again.offer(report(9, scale=3.0))
    again.send()
    assert jobs.importance.scores == scores_in(report(9, scale=3.0))


class Node:
    """One node of a fleet: jobs are known to all, importance to itself."""

    def __init__(self, server, known):
        self.server = server
        self.jobs = FakeJobs(known=known)
        server.other = self.jobs

    @property
    def importance(self):
        """The importance that the gateway received."""
        return self.jobs.importance


@pytest.fixture
def nodes():
    """Three nodes of one fleet, with the job."""
    known: dict[str, dict[str, object]] = {}
    with ExitStack() as stack:
        store = Store(dict.fromkeys(range(N), b""))
        servers = [stack.enter_context(serving(FakeBatchGateway(store))) for _ in NAMES]
        for server in servers:
            server.fleet = dict(zip(NAMES, (other.endpoint for other in servers), strict=True))
        yield [Node(server, known) for server in servers]


def sender_at(node):
    """A sender of a registered job there, without its thread."""
    heartbeat: HeartbeatThread = larder.Job(
        node.server.endpoint, "run", "digits", batch_size=8, credentials=KEY
    )._heartbeat
    heartbeat.beat()
    return ImportanceSender(heartbeat, DATASET)


def homes(names=NAMES):
    """The home of each item among these nodes."""
    ring = Ring(dict.fromkeys(names, 1))
    return [ring.ids[home] for home in ring.homes(np.array([key_of(item) for item in range(N)], np.uint64))]


def test_each_home_gets_its_own_items(nodes):
    """Rule: parts are disjoint, each with the items that its node is home of, and together they are the report."""
    sender = sender_at(nodes[0])
    sender.offer(report())
    sender.send()
    for name, node in zip(NAMES, nodes, strict=True):
        mine = [item for item, home in enumerate(homes()) if home == name]
        assert list(node.importance.scores) == list(node.importance.listed) == mine
        assert not node.importance.parts[0].of_all
    assert sender.counts["parts"] == 3


def test_one_home_is_away(nodes):
    """Rule: the other homes get their parts; the absent one gets its part later."""
    sender = sender_at(nodes[0])
    nodes[1].importance.refusals.append((503, "SlowDown"))
    sender.offer(report())
    with pytest.raises(Busy):
        sender.send()
    assert [bool(node.importance.scores) for node in nodes] == [True, False, True]
    sender.send()
    assert sum(len(node.importance.scores) for node in nodes) == N
    assert [len(node.importance.parts) for node in nodes] == [1, 2, 1]


def test_homes_move(nodes):
    """Rule: when the fleet changes, every node gets all scores of its new share."""
    sender = sender_at(nodes[0])
    sender.offer(report())
    sender.send()
    for node in nodes:
        del node.server.fleet["gw-3"]
    sender.offer(report(2))
    sender.send()
    for name, node in zip(NAMES[:2], nodes[:2], strict=True):
        assert node.importance.parts[-1].whole
        mine = [item for item, home in enumerate(homes(NAMES[:2])) if home == name]
        assert list(node.importance.scores) == mine


def test_a_job_sends_in_the_background(jobs):
    """Rule: a report returns at once and arrives after a heartbeat; the counts are in the job's."""
    with job_at(jobs) as job:
        job.report_importance(report(), DATASET)
        jobs.wait(lambda: jobs.importance.held)
        assert jobs.importance.scores == scores_in(report())
        jobs.wait(lambda: len(jobs.beats) >= 2)
        assert job.stats()["importance"]["reports"] == 1


def test_a_report_does_not_wait_for_the_next_heartbeat(jobs):
    """Rule: an epoch's list is sent when the epoch begins, however rare heartbeats are."""
    jobs.directives["heartbeat"] = 60.0
    with job_at(jobs) as job:
        for epoch in (1, 2):
            job.report_importance(report(epoch, scale=epoch), DATASET)
            jobs.wait(lambda epoch=epoch: len(jobs.importance.parts) == epoch)


def test_a_closed_gateway_stops_nothing():
    """Rule: with no gateway at all a report is as quick, and is kept for later; failures are counted."""
    with serving(FakeBatchGateway(Store({}))) as server:
        endpoint = server.endpoint
    failed = threading.Event()
    job = larder.Job(endpoint, "run", "digits", batch_size=8, credentials=KEY, retry=larder.Retry(attempts=1, base=0))
    job._heartbeat._failed = lambda error: failed.set()
    job.report_importance(report(), DATASET)
    assert failed.wait(30)
    assert job.stats()["importance"] == {"reports": 0, "parts": 0, "whole": 0, "bytes": 0, "failed": 0}
    job.close()


def test_a_copy_in_a_worker_sends_nothing(jobs):
    """Rule: only the process that made the job reports."""
    job = job_at(jobs)
    copy = larder.Job.__new__(larder.Job)
    copy.__dict__.update(job.__getstate__())
    copy._heartbeat = HeartbeatThread.__new__(HeartbeatThread)
    copy._heartbeat.__setstate__(job._heartbeat.__getstate__())
    copy.report_importance(report(), DATASET)
    assert "importance" not in copy.stats()
    job.close()
