"""The event loop's own counters give the same metrics as prometheus_client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.base.metrics import LoopHistogram, LoopSum

SECONDS = (0.0, 0.001, 0.0010001, 0.2, 1.0, 50.0)
_IN_A_FORK = f"""
import os
from prometheus_client import Counter, Histogram
from gateway.base.metrics import LoopHistogram, LoopSum, counted_in_loop, publish
events = Counter("test_events", "Events.")
requests = Counter("test_requests", "Requests.")
seconds = Histogram("test_seconds", "Seconds.")
events.inc(5)
child = os.fork()
if child == 0:
    LoopSum(events).inc(2)
    each = LoopHistogram(seconds)
    for amount in {SECONDS}:
        each.observe(amount)
    requests.inc(0)
    counted_in_loop(requests._value)
    requests._value._value += 4
    publish()
    requests._value._value += 1
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_the_event_loop_counts_what_prometheus_would() -> None:
    """Rule: sums, gauges that fall again, and every bucket, bounds included, are the same."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    for registry in (ours, theirs):
        events = Counter("test_events", "Events.", registry=registry)
        running = Gauge("test_running", "Running.", registry=registry)
        seconds = Histogram("test_seconds", "Seconds.", ["of"], registry=registry, buckets=(0.001, 0.2, 1.0)).labels(
            "a"
        )
        if registry is theirs:
            events.inc(3)
            running.inc(2)
            running.dec(1)
            for amount in SECONDS:
                seconds.observe(amount)
            continue
        LoopSum(events).inc(3)
        gauge, histogram = LoopSum(running), LoopHistogram(seconds)
        gauge.inc(2)
        gauge.inc(-1)
        for amount in SECONDS:
            histogram.observe(amount)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_worker_counts_into_its_own_file(tmp_path: Path) -> None:
    """Rule: a forked worker's counts add to those of the others, even if it counted nothing before; requests once published."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _IN_A_FORK], env=environment, check=True)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    assert registry.get_sample_value("test_events_total") == 7
    assert registry.get_sample_value("test_requests_total") == 4
    assert registry.get_sample_value("test_seconds_count") == len(SECONDS)
    assert registry.get_sample_value("test_seconds_sum") == sum(SECONDS)
    assert len(list(tmp_path.glob("counter_*.db"))) == 2
