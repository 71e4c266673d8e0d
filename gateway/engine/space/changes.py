"""The differences between two plans, in words: the history that explains how a dataset or a job is treated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.policies.space.orders import JobOrder, PoolOrder
from gateway.policies.space.plan import Plan


def changes(before: Plan, after: Plan, now: float) -> list[dict[str, Any]]:
    """One document per change; ``at`` is ``now``, in seconds; none if ``after`` equals ``before``.

    Of a dataset: ``what`` is allocated or released. Of a job: ``what`` is judged, with its phase and whether it uses the
    cache, or gone.
    """
    if after is before:
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


def _of_dataset(before: PoolOrder | None, after: PoolOrder | None) -> Iterator[dict[str, Any]]:
    if after is None:
        yield {"what": "released"}
        return
    if before is None or (before.caching, before.why) != (after.caching, after.why):
        yield {"what": "allocated", "caching": after.caching.value, "why": after.why.value, "granted": after.target}


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
