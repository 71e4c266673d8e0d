"""Input pipelines through a real gateway: costs beside PyTorch's and Ray Data's, and the workers that the gateway finds.

After Cachew (ATC 2022), Figures 6, 7 and 9.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import larder
from gateway.policies.space.autoscale import ScalePhase, ScaleSettings, Scaling, TrainerReport, scaled
from gateway.sim.figures import pyplot
from lab.evaluation.fleet import CREDENTIALS, Fleet, fleet
from lab.evaluation.input_sides import BATCH, CROP, SIDE, SIDES, Cost, Facts
from lab.evaluation.origin import BUCKET, origin_of_files
from lab.evaluation.pages import load_and_cores, machine, numbers, picture, record
from lab.evaluation.paused import WORK, paused
from larder import Client, Job
from larder.digest.writer import Row
from larder.digest.writer import write as write_digests
from larder.reading.source import Access

PHOTOS, TICKS = 512, 1000
"""Items of the two datasets: JPEGs, and items of some bytes."""
SIZE = (320, 240)
"""Pixels of a JPEG."""
WORKERS = (1, 2, 4, 8)
ON_RAY = (2, 4)
"""Workers of the sides on Ray, each of which needs a cluster and its memory."""
PAIR = 2
"""Elements of a batch on Ray."""
RATES = {"slow": 0.04, "middle": 0.02, "fast": 0.04 / 3}
"""Seconds per batch of the model; ``WORK * PAIR`` divided by it is the number of workers that keep it busy."""
MOST = 8
MEASURED, SETTLING = 100, 20
"""Timed batches per number of workers, and batches before them."""
LIMIT = 240
"""The most seconds of a side."""
PATIENCE = 120.0
"""Seconds after which a job that has not settled is given up."""
EPOCHS = 4
THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10)
DRAWS = 200


@dataclass
class Found:
    """A job for which the gateway finds the number of workers.

    Args:
        workers: their number over time, in seconds.
        epochs: seconds of whole epochs.
        modes: elements that each epoch read and stored at the mark.
        reasons: of decisions about the mark, with their times.
        whole: whether every element came once in each epoch.
    """

    workers: list[tuple[float, int]] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    modes: list[tuple[int, int]] = field(default_factory=list)
    reasons: list[tuple[float, str]] = field(default_factory=list)
    whole: bool = True

    @property
    def settled(self) -> int:
        """The latest number of workers."""
        return self.workers[-1][1]

    def note(self, at: float, workers: int, reason: str) -> None:
        """Record changes of the workers and of the reason."""
        if not self.workers or self.workers[-1][1] != workers:
            self.workers.append((at, workers))
        if reason and (not self.reasons or self.reasons[-1][1] != reason):
            self.reasons.append((at, reason))


def run() -> None:
    """Measure, and write the page."""
    where, load = machine(), load_and_cores()
    with tempfile.TemporaryDirectory() as temporary, serving(Path(temporary)) as endpoint:
        costs = _costs(endpoint)
        curves = _curves(endpoint)
        found = {name: _found(endpoint, name, pause) for name, pause in RATES.items()}
        timeline = _timeline(endpoint, RATES["middle"])
    _knee_plot(curves, found)
    _timeline_plot(timeline)
    _thresholds(curves)
    _timeline_epochs(timeline)
    data = {
        "work": WORK,
        "photos": PHOTOS,
        "size": SIZE,
        "side": SIDE,
        "crop": CROP,
        "batch": BATCH,
        "costs": _cost_figures(costs),
        "knees": _knees(curves, found),
        "draws": DRAWS,
        "whole": timeline.whole,
        "decisions": [{"after": at, "reason": reason} for at, reason in timeline.reasons],
    }
    record("evaluation/pipelines/pipelines_real", {"where": where, **load, **data})


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """A gateway with both datasets; its address."""
    files = directory / "files"
    photos = {f"photos/{number:05}.jpg": _photo(number) for number in range(PHOTOS)}
    ticks = {f"ticks/{number:05}": b"%d" % number for number in range(TICKS)}
    for key, data in {**photos, **ticks}.items():
        (files / key).parent.mkdir(parents=True, exist_ok=True)
        (files / key).write_bytes(data)
    with (
        origin_of_files(files, BUCKET, 0, 0) as store,
        fleet(store, directory / "fleet", 256e6, nodes=1) as running,
    ):
        for name, items in (("photos", photos), ("ticks", ticks)):
            _register(running, name, items)
        yield running.endpoints[0]


def _register(running: Fleet, name: str, items: Mapping[str, bytes]) -> None:
    rows = [
        Row(hashlib.sha256(data).digest(), BUCKET, key, None, len(data), "", len(data), None)
        for key, data in sorted(items.items())
    ]
    path = running.directory / f"{name}.parquet"
    write_digests(path, rows, "objects")
    Client(running.endpoints[0], credentials=CREDENTIALS).register(name, path)


def _photo(number: int) -> bytes:
    """A JPEG of smooth noise, with as many bytes as a photograph of these dimensions."""
    noise = np.random.default_rng(number).integers(0, 256, (SIZE[1] // 4, SIZE[0] // 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def _cost(side: str, facts: Facts) -> Cost:
    """Run a side in a new process."""
    settings = {
        "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-m", "lab.evaluation.input_sides", side, *map(str, facts)]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{side} with {facts.workers} workers failed:\n{done.stderr[-3000:]}")
    answer = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("["))
    print(f"{side}, {facts.workers} workers: {answer}", flush=True)
    return Cost(*json.loads(answer))


def _costs(endpoint: str) -> dict[tuple[str, int], Cost]:
    return {
        (side, workers): _cost(side, Facts(endpoint, "photos", workers))
        for side in SIDES
        for workers in (ON_RAY if "Ray" in side else WORKERS)
    }


def _pipeline(endpoint: str, **options: Any) -> larder.pipelines.Pipeline:
    access = Access(credentials=CREDENTIALS)
    return larder.pipeline("ticks", endpoint=endpoint, access=access, **options).map(paused).batch(PAIR)


def _curves(endpoint: str) -> dict[str, dict[int, list[float]]]:
    """Seconds of single batches with 1 to ``MOST`` workers, for each model."""
    found: dict[str, dict[int, list[float]]] = {name: {} for name in RATES}
    pipeline = _pipeline(endpoint, workers=1)
    for workers in range(1, MOST + 1):
        pipeline.scale(workers)
        for name, pause in RATES.items():
            found[name][workers] = list(islice(_batch_times(pipeline, workers, pause), MEASURED))
    pipeline.close()
    return found


def _batch_times(pipeline: larder.pipelines.Pipeline, workers: int, pause: float) -> Iterator[float]:
    """Seconds of consecutive batches, once all workers work and the queue has only their results."""
    seen: set[int] = set()
    ready, began = 0, time.perf_counter()
    for batch in chain.from_iterable(repeat(pipeline)):
        time.sleep(pause)
        seen |= set(batch[1].tolist())
        ready += len(seen) >= workers
        now = time.perf_counter()
        if ready > SETTLING:
            yield now - began
        began = now


def _found(endpoint: str, name: str, pause: float) -> Found:
    """Run a job that begins with one worker, until it has settled."""
    found, began = Found(), time.monotonic()
    with Job(endpoint, f"rate-{name}", "ticks", batch_size=PAIR, credentials=CREDENTIALS) as job:
        pipeline = _pipeline(endpoint, job=job)
        for _ in chain.from_iterable(repeat(pipeline)):
            time.sleep(pause)
            found.note(time.monotonic() - began, int(pipeline.stats()["workers"]), "")
            if _has_settled(found) or found.workers[0][0] + PATIENCE < time.monotonic() - began:
                break
        pipeline.close()
    return found


def _timeline(endpoint: str, pause: float) -> Found:
    """The first epochs of a job whose pipeline has a mark."""
    found, began = Found(), time.monotonic()
    access = Access(credentials=CREDENTIALS)
    with Job(endpoint, "timeline", "ticks", batch_size=PAIR, credentials=CREDENTIALS) as job:
        pipeline = larder.pipeline("ticks", endpoint=endpoint, access=access, job=job).map(paused)
        pipeline = pipeline.autocache().batch(PAIR)
        for _ in range(EPOCHS):
            start, came = time.monotonic(), []
            for batch in pipeline:
                time.sleep(pause)
                came += batch[0].tolist()
                now = time.monotonic() - began
                found.note(now, int(pipeline.stats()["workers"]), job.pipeline_directive.reason)
            found.epochs.append(time.monotonic() - start)
            found.whole = found.whole and sorted(came) == list(range(TICKS))
            (results,) = pipeline.stats()["results"].values()
            before = [sum(each) for each in zip(*found.modes, strict=True)] or [0, 0]
            found.modes.append((results["read"] - before[0], results["stored"] - before[1]))
        pipeline.close()
    return found


def _has_settled(found: Found) -> bool:
    """Whether the gateway has removed the worker that did not help."""
    return len(found.workers) > 1 and found.workers[-1][1] < found.workers[-2][1]


def knee(curve: Mapping[int, float], threshold: float = ScaleSettings().threshold) -> int:
    """The fewest workers for which one more shortens the time per batch by less than a threshold."""
    return next(
        (each for each in sorted(curve)[:-1] if curve[each + 1] > curve[each] * (1 - threshold)), max(sorted(curve))
    )


def decided(curve: Mapping[int, Sequence[float]], threshold: float, seed: int) -> int:
    """Workers that the shipped policy chooses if each report is the mean of 100 batches drawn from the measured ones."""
    chance, settings = np.random.default_rng(seed), ScaleSettings(threshold=threshold, most=MOST)
    now = Scaling()
    while now.phase is ScalePhase.GROWING:
        mean = float(chance.choice(np.asarray(curve[now.workers]), 100).mean())
        now = scaled(now, TrainerReport(mean, 0.0, now.workers), settings)
    return now.workers


def _means(curve: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {workers: sum(times) / len(times) for workers, times in curve.items()}


def _cost_figures(costs: Mapping[tuple[str, int], Cost]) -> dict[str, Any]:
    beside = {n: costs["larder", n].seconds / costs["DataLoader", n].seconds for n in WORKERS}
    return {
        "workers": WORKERS,
        "sides": {side: {of: costs[side, of]._asdict() for of in WORKERS if (side, of) in costs} for side in SIDES},
        "beside_dataloader": beside,
    }


def _knees(curves: Mapping[str, Mapping[int, Sequence[float]]], found: Mapping[str, Found]) -> list[dict[str, Any]]:
    means = {name: _means(curve) for name, curve in curves.items()}
    return [
        {
            "step": RATES[name],
            "seconds": {workers: of[workers] for workers in sorted(of)},
            "knee": knee(of),
            "found": found[name].settled,
        }
        for name, of in means.items()
    ]


def _knee_plot(curves: Mapping[str, Mapping[int, Sequence[float]]], found: Mapping[str, Found]) -> None:
    figure, axes = pyplot().subplots(figsize=(6, 3.5))
    for name, curve in curves.items():
        means = _means(curve)
        (line,) = axes.plot(list(means), [1000 * each for each in means.values()], "o-", label=f"model: {name}")
        at = found[name].settled
        axes.plot([at], [1000 * means.get(at, float("nan"))], "*", markersize=16, color=line.get_color())
    axes.set_xlabel("workers (star: found)")
    axes.set_ylabel("ms per batch")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    picture("pipelines_real-workers", figure)


def _thresholds(curves: Mapping[str, Mapping[int, Sequence[float]]]) -> None:
    rows = []
    for threshold in THRESHOLDS:
        row = [f"{threshold:.0%}"]
        for curve in curves.values():
            all_of = sorted(decided(curve, threshold, seed) for seed in range(DRAWS))
            row.append(f"{all_of[DRAWS // 2]} ({all_of[DRAWS // 20]} to {all_of[-1 - DRAWS // 20]})")
        rows.append(row)
    numbers("pipelines_real-threshold", ["threshold", *(f"model: {name}" for name in curves)], rows)


def _timeline_epochs(timeline: Found) -> None:
    rows = [
        [str(number), f"{seconds:.1f} s", str(read), str(stored)]
        for number, (seconds, (read, stored)) in enumerate(zip(timeline.epochs, timeline.modes, strict=True))
    ]
    numbers("pipelines_real-epochs", ["epoch", "time", "elements read at the mark", "stored"], rows)


def _timeline_plot(timeline: Found) -> None:
    figure, axes = pyplot().subplots(figsize=(8, 3))
    end = sum(timeline.epochs)
    axes.step(
        [at for at, _ in timeline.workers] + [end], [n for _, n in timeline.workers] + [timeline.settled], where="post"
    )
    for epoch in range(1, len(timeline.epochs)):
        axes.axvline(sum(timeline.epochs[:epoch]), color="#888888", linestyle="--", linewidth=1)
    for at, _ in timeline.reasons:
        axes.axvline(at, color="#1b7f5c", linewidth=1)
    axes.set_xlabel("seconds (dashed: epochs; green: decisions about the mark)")
    axes.set_ylabel("workers")
    axes.set_ylim(bottom=0)
    picture("pipelines_real-timeline", figure)
