"""Read-only keys under ``/-/v1``: they change nothing made by another key of their tenant.

A training run needs a job and a dataset, both soft state. So a read-only key may register its own jobs, and a dataset under an
unused name. It replaces and removes no registration, decides on no listings, and does not report for other keys' jobs.
"""

from __future__ import annotations

from gateway.fleet.jobs.jobs import JobRecord
from gateway.model.datasets import ApiError
from gateway.model.keys import Principal


def require_own(principal: Principal, job: JobRecord | None) -> None:
    """Refuse a read-only key's change of another key's job; ``job`` is ``None`` if there is no such job.

    Raises:
        ApiError: AccessDenied.
    """
    if principal.read_only and job is not None and job.owner != principal.access_key_id:
        raise ApiError("AccessDenied", f"This access key is read-only, and the job {job.job!r} belongs to another key.")


def require_writer(principal: Principal, needed: str) -> None:
    """Refuse a read-only key, which must not do what is ``needed``.

    Raises:
        ApiError: AccessDenied.
    """
    if principal.read_only:
        raise ApiError("AccessDenied", f"This access key is read-only: it {needed}.")
