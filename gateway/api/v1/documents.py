"""The ``/-/v1`` documents about datasets, as schemas with examples."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.model.datasets import CACHING

MOST_ITEMS = 10_000
"""Items in one page of a listing."""
_ID = "3310881304358 1e677d5c9eb047b1f7a3bccdeccac3aa28a09be4e528862199d".replace(" ", "")

CachingWanted = Literal["auto", "full", "part", "none", "static", "chunked"]
ListingWanted = Literal["forward", "immutable"]
assert CachingWanted.__args__ == CACHING  # type: ignore[attr-defined]


class Chunks(BaseModel):
    """For clients of earlier versions: the dataset is one chunk."""

    partitions: int = Field(1, examples=[1])
    units: int = Field(1, examples=[1])


class Dataset(BaseModel):
    """A registered dataset."""

    name: str = Field(examples=["imagenet-train"])
    id: str = Field(description="SHA-256 over the items' digests in order", examples=[_ID])
    items: int = Field(examples=[1281167])
    members: int = Field(description="items of a sample, which are adjacent; 1 without samples", examples=[1])
    bytes: int = Field(description="of all items whose length is known", examples=[146_000_000_000])
    caching: Literal["full", "part", "none"] = Field(
        description="the mode for a reader that begins now: from the fleet's plan if it includes the dataset, else from its size",
        examples=["part"],
    )
    chunks: Chunks
    plan: int = Field(description="version of the plan that caching comes from", examples=[1])
    resident: int = Field(
        description="items in the caches of the fleet, those of other nodes as of their last reports",
        examples=[256_000],
    )
    registered_at: str = Field(description="ISO 8601", examples=["2026-03-01T09:30:00.000Z"])
    request_payer: bool = Field(
        description="it was registered with x-amz-request-payer: requester, so reads of its items carry that header",
        examples=[False],
    )
    listing: list[str] = Field(
        description="bucket and folder of listings that are answered from a recorded one; empty: none",
        examples=[["datasets/imagenet/"]],
    )


class Datasets(BaseModel):
    """A tenant's datasets by name."""

    datasets: list[Dataset]


class Item(BaseModel):
    """The location of an item. Its digest is left out: it is a right to read the item."""

    index: int = Field(examples=[0])
    bucket: str = Field(examples=["datasets"])
    key: str = Field(examples=["imagenet/train/n01440764/n01440764_10026.JPEG"])
    offset: int | None = Field(description="in bytes; null for the start of a whole object", examples=[None])
    length: int | None = Field(description="in bytes; null for up to the object's end", examples=[13697])
    size: int | None = Field(
        None, description="bytes of the item; null: the digest file does not say", examples=[13697]
    )


class Items(BaseModel):
    """A page of items."""

    items: list[Item]


class SourceRequest(BaseModel):
    """The address of a digest file, to be read with the caller's own rights at the origin."""

    model_config = ConfigDict(extra="forbid")

    source: Annotated[
        str, Field(pattern=r"^s3://[^/]+/.+", max_length=2048, examples=["s3://datasets/imagenet/train.digest.parquet"])
    ]
