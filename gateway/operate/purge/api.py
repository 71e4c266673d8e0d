"""``/-/admin/purge``: drops a cached object, or all below a prefix, in the whole fleet. The origin is not changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field, model_validator

from gateway.admin.catalog.fields import Bucket, Key, Prefix, RequestModel
from gateway.admin.http.parts import AdminParts
from gateway.admin.http.requests import Changer, Parts
from gateway.admin.state.operations import Operations
from gateway.admin.state.parameters import Ops
from gateway.edge.documents import ResponseModel
from gateway.edge.endpoints import of_state
from gateway.operate.purge.remembered import remember
from gateway.operate.purge.work import Purge, Purged, Purges

router = APIRouter(tags=["purge"])
Service = Annotated[Purges, Depends(of_state("purges"))]
_LATELY = 600.0
"""Seconds for which a silent node is listed, although it applies the purge when it is back."""
_FORGETS = "it applies the purge from the catalog when it returns"
_MAY_KEEP = (
    "it applies the purge when it returns only if it uses this SQLite file as its catalog; otherwise purge again then"
)


class PurgeRequest(RequestModel):
    """The objects to drop: those below a prefix, or the one with a key."""

    bucket: Bucket = Field(examples=["training-data"])
    prefix: Prefix | None = Field(
        None, description='prefix of the keys; "" for the whole bucket', examples=["imagenet/val/"]
    )
    key: Key | None = Field(None, description="of one object, instead of prefix", examples=[None])
    dry_run: bool = Field(False, description="count only", examples=[False])

    @model_validator(mode="after")
    def _one_of_them(self) -> PurgeRequest:
        if (self.prefix is None) == (self.key is None):
            raise ValueError("name either a prefix or a key")
        return self

    def purge(self) -> Purge:
        """The purge that is asked for, without a name."""
        if self.key is not None:
            return Purge(self.bucket, self.key, self.dry_run, exact=True)
        return Purge(self.bucket, self.prefix or "", self.dry_run)


class NodePurged(ResponseModel):
    """The result of one node."""

    node: str = Field(examples=["gw-1"])
    objects: int = Field(description="dropped from its cache", examples=[1042])
    bytes: int = Field(description="of them, in its cache", examples=[109_051_904])
    failure: str = Field(
        description="why the node has not applied the purge, and when it will; empty if it has",
        examples=[""],
    )


class PurgeDone(ResponseModel):
    """The result of a purge or a dry run."""

    bucket: str = Field(examples=["training-data"])
    prefix: str | None = Field(examples=["imagenet/val/"])
    key: str | None = Field(examples=[None])
    dry_run: bool = Field(examples=[False])
    objects: int = Field(description="on all nodes", examples=[3120])
    bytes: int = Field(examples=[327_155_712])
    complete: bool = Field(
        description="whether every node that is up, or was until recently, has applied it", examples=[True]
    )
    nodes: list[NodePurged] = Field(description="by id")


@router.post("/purge", summary="Purge an object or a prefix")
async def purge_prefix(
    asked: PurgeRequest, caller: Changer, operations: Ops, purges: Service, parts: Parts
) -> PurgeDone:
    """Every node drops the objects and discards fills in progress; the next reads ask the origin.

    Use it for objects that were changed at the origin directly. Items of datasets stay, since their digest identifies them. The
    catalog records the purge: a node with this catalog that is down applies it before it serves again. The answer lists every
    node that has not applied it yet.
    """
    purge = asked.purge()
    done = await purges.count(purge)
    if not asked.dry_run:
        # Recorded first: the purge may take a while, and completes even if the caller leaves.
        async with parts.catalog.changes.change(caller, "purge", f"{purge.bucket}/{purge.prefix}") as change:
            change.after = asked.model_dump(include={"bucket", "prefix", "key"}, exclude_none=True)
            wanted = await remember(change, purge, parts.catalog.now)
        done = await _with_the_absent(await purges.everywhere(wanted, done), operations, parts)
        operations.fleet.stale()
    return PurgeDone.of(
        asked,
        objects=sum(outcome.held.objects for outcome in done.values()),
        bytes=sum(outcome.held.bytes for outcome in done.values()),
        complete=not any(outcome.failure for outcome in done.values()),
        nodes=[
            NodePurged.of(outcome.held, node=name, failure=outcome.failure) for name, outcome in sorted(done.items())
        ],
    )


async def _with_the_absent(done: dict[str, Purged], operations: Operations, parts: AdminParts) -> dict[str, Purged]:
    """Add nodes that have not applied the purge: those that failed, and those that fell silent recently."""
    shared = not parts.file().database.sqlite
    back = _FORGETS if shared else _MAY_KEEP
    named = {
        name: replace(outcome, failure=f"{outcome.failure}; {back}") if outcome.failure else outcome
        for name, outcome in done.items()
    }
    if parts.file().in_fleet:
        reading = await operations.fleet.look()
        within = _LATELY if shared else float("inf")
        for name, sample in reading.statuses.items():
            if name not in named and sample.age <= within:
                named[name] = Purged(failure=f"it has been silent for {sample.age:.0f} s; {back}")
    return named
