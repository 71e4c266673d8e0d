"""``/-/admin/purge``: have the whole fleet forget what is below a prefix. Nothing is changed at the origin."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, Field

from gateway.admin.documents import Answer, Asked
from gateway.admin.operations import Ops
from gateway.admin.parts import Parts
from gateway.admin.tokens import Admin
from gateway.engine.purge import Purge, Purged
from gateway.model.keys import is_bucket_name

router = APIRouter(tags=["purge"])


def _a_bucket(text: str) -> str:
    if not is_bucket_name(text):
        raise ValueError("is no bucket's name")
    return text


Bucket = Annotated[str, AfterValidator(_a_bucket), Field(min_length=1, max_length=255)]
"""The name of a bucket."""
Prefix = Annotated[str, Field(max_length=1024)]
"""What keys begin with; any text, as keys may be."""


class PurgeRequest(Asked):
    """What to forget."""

    bucket: Bucket = Field(examples=["training-data"])
    prefix: Prefix = Field(description='what keys begin with; "" for the whole bucket', examples=["imagenet/val/"])
    dry_run: bool = Field(False, description="only count", examples=[False])


class NodePurged(Answer):
    """What became of it on one node."""

    node: str = Field(examples=["gw-1"])
    objects: int = Field(description="that were in its cache", examples=[1042])
    bytes: int = Field(description="of them, in its cache", examples=[109_051_904])
    failure: str = Field(
        description="why the node could not be asked; empty if it has forgotten. Purge again when it can be",
        examples=[""],
    )


class PurgeDone(Answer):
    """What was forgotten, or would be."""

    bucket: str = Field(examples=["training-data"])
    prefix: str = Field(examples=["imagenet/val/"])
    dry_run: bool = Field(examples=[False])
    objects: int = Field(description="on all nodes", examples=[3120])
    bytes: int = Field(examples=[327_155_712])
    complete: bool = Field(description="whether every node that is there has done it", examples=[True])
    nodes: list[NodePurged] = Field(description="by id")


@router.post("/purge", summary="Forget what is below a prefix")
async def purge(asked: PurgeRequest, caller: Admin, operations: Ops, parts: Parts) -> PurgeDone:
    """Every node forgets the objects and stops believing reads that are under way; the next readers ask the origin.

    For what was changed at the origin behind the gateway's back. Items of datasets are not meant: they are what their digest
    says.
    """
    wanted = Purge(asked.bucket, asked.prefix, asked.dry_run)
    if not asked.dry_run:
        # Noted before it is done: it may take a while, and is done even if the caller leaves.
        async with parts.catalog.changes.change(caller, "purge", f"{asked.bucket}/{asked.prefix}") as change:
            change.after = {"bucket": asked.bucket, "prefix": asked.prefix}
    done = await operations.purges.everywhere(wanted)
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


def _document(name: str, done: Purged) -> NodePurged:
    return NodePurged(node=name, objects=done.held.objects, bytes=done.held.bytes, failure=done.failure)
