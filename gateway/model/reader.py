"""The job that a batch is for, and its epoch: known to the gateway that is asked, and passed on to the homes of its items."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from urllib.parse import quote, unquote

READER = "x-larder-reader"
"""The header between nodes. One that does not know it ignores it, so nodes of two versions understand each other."""
REFUSED = "x-larder-refused"
"""The header between nodes of a batch that is read from the origin although it is cached."""
SWEEPS = "x-larder-sweeps"
"""The header between nodes of a reader in an epoch, who reads every item of the dataset."""
MOST_EPOCH = 2**63 - 1
_VALUE = re.compile(r"([0-9]{1,18}):([!-~]{1,1600})")


@dataclass(frozen=True, slots=True)
class ReadingJob:
    """One job in one epoch. ``key`` identifies tenant and job, the same on every node; 0 means no job."""

    tenant: str
    job: str
    epoch: int
    key: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        name = f"{self.tenant}\0{self.job}".encode("utf-8", "surrogatepass")
        object.__setattr__(self, "key", int.from_bytes(blake2b(name, digest_size=8).digest(), "little") or 1)


def reader_header(reader: ReadingJob) -> tuple[str, str]:
    """The header that names a reader; the tenant is that of the principal."""
    return READER, f"{reader.epoch}:{quote(reader.job, safe='', errors='surrogatepass')}"


def read_reader(tenant: str, text: str) -> ReadingJob | None:
    """Parse the header's value; ``None`` if it is malformed: it carries nothing but a hint."""
    match = _VALUE.fullmatch(text)
    return None if match is None else ReadingJob(tenant, unquote(match[2], errors="surrogatepass"), int(match[1]))
