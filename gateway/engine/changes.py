"""What differs between two plans, in words: the history that explains why a dataset or a job is treated as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.policies.plan import Chunks, DatasetOrder, JobOrder, Plan


def changes(before: Plan, after: Plan, now: float) -> list[dict[str, Any]]:
    """One document per change; ``at`` is ``now``, in seconds.

    Of a dataset: ``what`` is allocated, or what happened to the chunk ``chunk``: started, loaded, marked, evicted. Of a job:
    ``what`` is judged, with its phase and whether it uses the cache.
    """
    if after.version == before.version:
        return []
    common = {"at": round(now, 3), "version": after.version}
    datasets = sorted({*before.datasets, *after.datasets})
    jobs = sorted({*before.jobs, *after.jobs})
    return [
        *(
            {**common, "dataset": dataset, **change}
            for dataset in datasets
            for change in _of_dataset(before.datasets.get(dataset), after.datasets.get(dataset))
        ),
        *(
            {**common, "job": job, **change}
            for job in jobs
            for change in _of_job(before.jobs.get(job), after.jobs.get(job))
        ),
    ]


def _of_dataset(before: DatasetOrder | None, after: DatasetOrder | None) -> Iterator[dict[str, Any]]:
    if after is None:
        yield {"what": "released"}
        return
    if before is None or (before.caching, before.why, before.units) != (after.caching, after.why, after.units):
        yield {"what": "allocated", "caching": after.caching.value, "why": after.why.value, "granted": after.granted}
    was = Chunks() if before is None else before.chunks
    yield from ({"what": "evicted", "chunk": chunk} for chunk in was.held if chunk not in after.chunks.held)
    yield from ({"what": "loaded", "chunk": chunk} for chunk in after.chunks.complete if chunk not in was.complete)
    yield from ({"what": "marked", "chunk": chunk} for chunk in after.chunks.marked if chunk not in was.marked)
    if after.chunks.loading >= 0 and after.chunks.loading != was.loading:
        yield {"what": "started", "chunk": after.chunks.loading}


def _of_job(before: JobOrder | None, after: JobOrder | None) -> Iterator[dict[str, Any]]:
    if after is None:
        yield {"what": "gone"}
    elif before is None or (before.cache, before.phase) != (after.cache, after.phase):
        yield {
            "what": "judged",
            "phase": after.phase.value,
            "cache": after.cache,
            "benefit": round(after.benefit, 3),
        }
