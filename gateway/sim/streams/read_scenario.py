"""Scenarios of plain clients: prefixes of a store, clients that read them in some order, and kinds of caching to compare."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from gateway.model.errors import ConfigError
from gateway.sim.jobs.scenario import Name, OriginSpec, Seconds, Size, SpecTable, check_names
from gateway.sim.streams.reads import RANDOM_ORDERS, SEQUENTIAL_ORDERS, SKEWED_ORDERS, ReadOrder

ORDERS_OF_READS: dict[str, ReadOrder] = {**RANDOM_ORDERS, **SKEWED_ORDERS, **SEQUENTIAL_ORDERS}
BUCKET = "data"


class Parts(StrEnum):
    """Parts that a run may switch off, to measure their effect."""

    PREFETCH = "prefetch"
    EVICTION = "eviction"
    LIFETIME = "lifetime"
    SPACE = "space"


class StoredObject(NamedTuple):
    """An object: its key, its size in bytes, its number of blocks, and how many objects it represents."""

    key: str
    size: int
    blocks: int
    grouped: int = 1


class PrefixSpec(SpecTable):
    """Objects of one size below one prefix: ``name/folder/file``, or ``name/file`` without folders."""

    name: Name
    folders: Annotated[int, Field(ge=0, le=100_000, description="0: the files are below the prefix itself")] = 0
    files: Annotated[int, Field(ge=1, le=1_000_000, description="In each folder")]
    size: Annotated[Size, Field(gt=0, description="Bytes of a file")]
    grouped: Annotated[
        int,
        Field(
            ge=1, le=1000, description="Files simulated as one, which is read as long as they are one after the other"
        ),
    ] = 1
    same_names: Annotated[bool, Field(description="Whether files have the same names in all folders")] = False

    def objects(self, block: int) -> Iterator[StoredObject]:
        """All objects of the prefix, in listing order."""
        blocks = 1 if self.grouped > 1 else -(-self.size // block)
        size = self.size * self.grouped
        for folder in range(max(1, self.folders)):
            for number in range(self.files // self.grouped):
                name = f"{number:06d}" if self.same_names or not self.folders else f"{folder:05d}-{number:06d}"
                inner = f"{folder:05d}/{name}" if self.folders else name
                yield StoredObject(f"{self.name}/{inner}", size, blocks, self.grouped)

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.files % self.grouped:
            raise ValueError(f"prefixes: {self.name}: files must be a multiple of grouped")
        return self


class ClientSpec(SpecTable):
    """A client that reads one prefix."""

    name: Name
    prefix: Annotated[str, Field(description="That it reads")] = ""
    order: Annotated[str, Field(description="How the blocks of all files are read")] = ""
    reads: Annotated[int, Field(ge=0, description="Blocks; 0: as many as there are, once")] = 0
    epochs: Annotated[float, Field(gt=0, description="How many times as many")] = 1.0
    file: Annotated[str, Field(description="Only the files of this name, one in each folder")] = ""
    workers: Annotated[int, Field(ge=1, le=256, description="Reads at the same time")] = 1
    compute: Annotated[Seconds, Field(description="Seconds between two reads of a worker")] = 0.0
    start: Annotated[Seconds, Field(description="When it begins")] = 0.0
    trace: Annotated[
        str, Field(description="CSV of key, block and the object's bytes, instead of prefix and order")
    ] = ""

    @model_validator(mode="after")
    def _reads_something(self) -> Self:
        if not self.trace and self.order not in ORDERS_OF_READS:
            raise ValueError(f"order must be one of {', '.join(ORDERS_OF_READS)}")
        return self


class ReadRunSpec(SpecTable):
    """One kind of caching."""

    name: Name
    mode: Annotated[
        Literal["none", "lru", "lfu", "fifo", "uniform", "arc", "streams"],
        Field(description="An eviction order for all, or access streams with what follows from them"),
    ]
    stride: Annotated[bool, Field(description="Whether 4 blocks follow 4 consecutive ones of an object")] = False
    without: Annotated[tuple[Parts, ...], Field(description="What is left out")] = ()
    parts: Annotated[
        dict[Name, Size],
        Field(description="Prefixes with a part of the cache that keeps what it has; not for streams"),
    ] = {}  # noqa: RUF012 - pydantic copies it

    def fits(self, prefixes: Collection[str], capacity: int) -> bool:
        """Whether the parts belong to known prefixes and fit the cache."""
        return self.parts.keys() <= set(prefixes) and sum(self.parts.values()) <= capacity


class ReadScenario(SpecTable):
    """The content of a scenario's file."""

    title: str
    text: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    block: Annotated[Size, Field(gt=0, description="Larger objects are read and cached in blocks of it")] = 4_000_000
    capacity: Annotated[Size, Field(gt=0, description="Bytes of the cache")]
    hit_bandwidth: Annotated[Size, Field(gt=0, description="Bytes per second of a hit")] = 1_000_000_000
    hit_latency: Annotated[Seconds, Field(description="Seconds before the first byte of a hit")] = 0.001
    listing: Annotated[bool, Field(description="Whether the store may be listed")] = True
    origin: OriginSpec
    prefixes: tuple[PrefixSpec, ...] = ()
    clients: Annotated[tuple[ClientSpec, ...], Field(min_length=1)]
    runs: Annotated[tuple[ReadRunSpec, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        known = {prefix.name for prefix in self.prefixes}
        for client in self.clients:
            if not client.trace and client.prefix not in known:
                raise ValueError(f"clients: {client.name}: there is no prefix {client.prefix!r}")
        for run in self.runs:
            if run.parts and (run.mode == "streams" or not run.fits(known, self.capacity)):
                raise ValueError(f"runs: {run.name}: parts are of prefixes, fit the capacity, and go without streams")
        check_names(prefixes=self.prefixes, clients=self.clients, runs=self.runs)
        return self


class TracedRead(NamedTuple):
    """A line of a recorded trace."""

    key: str
    block: int
    size: int


def traced(path: str, block: int) -> list[TracedRead]:
    """The reads of a recorded trace, in order: key, number of the block, bytes of the whole object.

    Args:
        path: of the CSV.
        block: bytes of a block.

    Raises:
        ConfigError: it cannot be read, or has no reads.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reads = [TracedRead(key, int(number), int(size)) for key, number, size in csv.reader(file)]
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{path}: {error}") from error
    sizes = {read.key: read.size for read in reads}
    for line, read in enumerate(reads, 1):
        if not 0 <= read.block * block < sizes[read.key]:
            raise ConfigError(f"{path}: line {line}: the last size of {read.key} leaves it no block {read.block}")
    if not reads:
        raise ConfigError(f"{path}: has no reads")
    return reads
