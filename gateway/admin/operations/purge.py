"""``/-/admin/purge``: have the whole fleet forget what is below a prefix. Nothing is changed at the origin."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, Field

from gateway.admin.catalog.purges import remember
from gateway.admin.http.documents import RequestModel, ResponseModel
from gateway.admin.http.requests import AdminParts, Parts
from gateway.admin.http.tokens import Admin
from gateway.admin.operations.parts import Operations, Ops
from gateway.engine.operations.purge import Purge, Purged
from gateway.model.keys import is_bucket_name

router = APIRouter(tags=["purge"])
_LATELY = 600.0
"""Seconds for which a node that fell silent is named, though it forgets when it comes back."""
_FORGETS = "the catalog remembers it, and it forgets when it is back"
_MAY_KEEP = "it forgets when it is back only if this very SQLite file is its catalog too: if not, purge again then"


def _a_bucket(text: str) -> str:
    if not is_bucket_name(text):
        raise ValueError("is no bucket's name")
    return text


Bucket = Annotated[str, AfterValidator(_a_bucket), Field(min_length=1, max_length=255)]
"""The name of a bucket."""
Prefix = Annotated[str, Field(max_length=1024)]
"""What keys begin with; any text, as keys may be."""


class PurgeRequest(RequestModel):
    """What to forget."""

    bucket: Bucket = Field(examples=["training-data"])
    prefix: Prefix = Field(description='what keys begin with; "" for the whole bucket', examples=["imagenet/val/"])
    dry_run: bool = Field(False, description="only count", examples=[False])


class NodePurged(ResponseModel):
    """What became of it on one node."""

    node: str = Field(examples=["gw-1"])
    objects: int = Field(description="that were in its cache", examples=[1042])
    bytes: int = Field(description="of them, in its cache", examples=[109_051_904])
    failure: str = Field(
        description="why the node has not forgotten, and what becomes of it when it is back; empty if it has",
        examples=[""],
    )


class PurgeDone(ResponseModel):
    """What was forgotten, or would be."""

    bucket: str = Field(examples=["training-data"])
    prefix: str = Field(examples=["imagenet/val/"])
    dry_run: bool = Field(examples=[False])
    objects: int = Field(description="on all nodes", examples=[3120])
    bytes: int = Field(examples=[327_155_712])
    complete: bool = Field(
        description="whether every node has done it that was there, or was a short while ago", examples=[True]
    )
    nodes: list[NodePurged] = Field(description="by id")


@router.post("/purge", summary="Forget what is below a prefix")
async def purge(asked: PurgeRequest, caller: Admin, operations: Ops, parts: Parts) -> PurgeDone:
    """Every node forgets the objects and stops believing reads that are under way; the next readers ask the origin.

    For what was changed at the origin behind the gateway's back. Items of datasets are not meant: they are what their digest
    says. The catalog remembers it: a node of this catalog that is away forgets when it comes back, before it answers anybody.
    It is named all the same, as is every other one that has not forgotten yet.
    """
    done = await operations.purges.count(Purge(asked.bucket, asked.prefix, dry_run=True))
    if not asked.dry_run:
        # Noted before it is done: it may take a while, and is done even if the caller leaves.
        async with parts.catalog.changes.change(caller, "purge", f"{asked.bucket}/{asked.prefix}") as change:
            change.after = {"bucket": asked.bucket, "prefix": asked.prefix}
            wanted = await remember(change, asked.bucket, asked.prefix, parts.catalog.now)
        done = await _with_the_absent(await operations.purges.everywhere(wanted, done), operations, parts)
        operations.board.stale()
    return PurgeDone(
        bucket=asked.bucket,
        prefix=asked.prefix,
        dry_run=asked.dry_run,
        objects=sum(one.held.objects for one in done.values()),
        bytes=sum(one.held.bytes for one in done.values()),
        complete=not any(one.failure for one in done.values()),
        nodes=[_document(name, done[name]) for name in sorted(done)],
    )


async def _with_the_absent(done: dict[str, Purged], operations: Operations, parts: AdminParts) -> dict[str, Purged]:
    """Name who has not forgotten, and what becomes of it: nodes that were asked, and those that fell silent lately."""
    shared = not parts.file().database.sqlite
    back = _FORGETS if shared else _MAY_KEEP
    named = {name: replace(one, failure=f"{one.failure}; {back}") if one.failure else one for name, one in done.items()}
    if parts.file().in_fleet:
        reading = await operations.board.look()
        within = _LATELY if shared else float("inf")
        for name, told in reading.told.items():
            if name not in named and told.age <= within:
                named[name] = Purged(failure=f"it has been silent for {told.age:.0f} s; {back}")
    return named


def _document(name: str, done: Purged) -> NodePurged:
    return NodePurged(node=name, objects=done.held.objects, bytes=done.held.bytes, failure=done.failure)
