"""The job of a batch, and its epoch: the gateway that receives the batch passes them on to the homes of its items."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from urllib.parse import quote, unquote

READER = "x-larder-reader"
"""The header between nodes. A node that does not know it ignores it, so nodes of two versions understand each other."""
REFUSED = "x-larder-refused"
"""The header between nodes for a batch that is read from the origin although it is cached."""
SWEEPS = "x-larder-sweeps"
"""The header between nodes for a reader in an epoch, who reads every item of the dataset."""
ORDER = "x-larder-order"
"""The header, from clients and between nodes, that names the order that a job follows exactly."""
_ORDER = re.compile(r"sequential|shuffled:-?[0-9]{1,40}")
_VALUE = re.compile(r"([0-9]{1,18}):([!-~]{1,1600})")


@dataclass(frozen=True, slots=True)
class ReadingJob:
    """One job in one epoch. ``key`` identifies tenant and job, the same on every node; 0 means no job.

    ``order`` names the order that the job follows exactly (policies/items/epoch_order.py), empty if it takes substitutes;
    ``followed`` identifies the order, 0 without one.
    """

    tenant: str
    job: str
    epoch: int
    order: str = ""
    key: int = field(init=False, compare=False)
    followed: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _hash_of(f"{self.tenant}\0{self.job}"))
        object.__setattr__(self, "followed", _hash_of(self.order) if self.order else 0)


def reader_header(reader: ReadingJob) -> tuple[str, str]:
    """The header that names a reader; the tenant is that of the principal."""
    return READER, f"{reader.epoch}:{quote(reader.job, safe='', errors='surrogatepass')}"


def read_reader(tenant: str, text: str, order: str = "") -> ReadingJob | None:
    """Parse the header's value; ``None`` if it is malformed, because it is only a hint."""
    match = _VALUE.fullmatch(text)
    if match is None:
        return None
    return ReadingJob(tenant, unquote(match[2], errors="surrogatepass"), int(match[1]), order)


def read_order(text: str) -> str:
    """Parse the value of ``ORDER``; empty if it is malformed, or of an order that this version does not know."""
    return text if _ORDER.fullmatch(text) else ""


def _hash_of(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1
