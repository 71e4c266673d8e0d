"""Whole epochs of jobs as documents, the same for operators (``/-/admin/jobs``) and tenants (``/-/v1/jobs``)."""

from __future__ import annotations

from pydantic import Field

from gateway.edge.documents import ResponseModel
from gateway.policies.space.epochs import EpochReads


class LastEpoch(ResponseModel):
    """The last whole epoch of a job."""

    epoch: int = Field(examples=[30])
    items: int = Field(description="that it delivered, to all ranks", examples=[1_281_167])
    origin_reads: int = Field(description="of them, read from the origin for this job", examples=[331_000])
    per_item: float = Field(description="reads of the origin per item", examples=[0.258])
    least: float | None = Field(
        description="share of the dataset that was not cached when it began: the fewest reads per item that all jobs on the "
        "dataset together can make; null: not known",
        examples=[0.5],
    )


def last_epoch(reads: EpochReads | None) -> LastEpoch | None:
    """The document of an epoch."""
    if reads is None:
        return None
    least = None if reads.least is None else round(reads.least, 4)
    return LastEpoch.of(reads, per_item=round(reads.per_item, 4), least=least)
