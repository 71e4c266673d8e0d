"""Runs ``convert`` in a separate process, so that a malicious digest file cannot harm the gateway."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiofiles

import gateway
from gateway.base import children
from gateway.model.datasets import MAX_ITEMS, ApiError
from gateway.model.errors import LarderError
from gateway.policies.health.breaker import FailureKind
from gateway.policies.items.dataset_quota import Limit
from gateway.store.files.failures import DiskFault
from gateway.store.files.threads import HUNG_AFTER, once

log = logging.getLogger("larder.datasets")

READY = b"ready\n"
NO_SPACE = "NoSpace"
"""The converter's code for a full disk, which is not the client's error."""
_WAIT_FOR_TURN = 120.0
_LARGEST_ANSWER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources of one conversion.

    ``memory`` is address space in bytes, ``seconds`` is wall time, ``reserve`` is the bytes of the file system to keep free.
    """

    memory: int = 4 * 1024**3
    seconds: float = 600.0
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """The limits of the result of one conversion.

    ``allow`` are globs, one of which each item's ``bucket/key`` must match; empty: no restriction. ``output`` is in bytes.
    Temporary files take 40 bytes per item, of which there are at most ``items``, and a ninth of ``output``.
    """

    allow: tuple[str, ...] = ()
    items: int = MAX_ITEMS
    output: int = sys.maxsize


class GrantExceeded(LarderError):
    """The dataset has more items (``Limit.ITEMS``), or takes more bytes (``Limit.BYTES``), than its grant allows."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        super().__init__(f"the limit of {limit} is exceeded")


@dataclass(frozen=True, slots=True)
class Converted:
    """The content that a digest file lists; ``tag`` is the name of its folder."""

    id: str
    tag: str
    items: int
    size: int


async def convert(parquet: Path, draft: Path, limits: Limits, grant: Grant, turns: Sequence[Path]) -> Converted:
    """Turn a digest file into a dataset's files.

    Args:
        parquet: the digest file.
        draft: the folder in which ``content/`` and ``locations`` are made.
        limits: resources of the conversion.
        grant: limits of the result.
        turns: locks: first the tenant's lock, then the node's locks, of which any one suffices.

    Raises:
        ApiError: InvalidDigestFile, TooLarge, AccessDenied; SlowDown if others are still in progress; NotImplemented without
            pyarrow.
        GrantExceeded: the result exceeds the grant.
        DiskFault: the disk has no room for the result.
    """
    if not _can_read():
        raise ApiError(
            "NotImplemented", "This gateway cannot read digest files: pip install 'larder-gateway[datasets]' there."
        )
    job = {**asdict(grant), "memory": limits.memory, "reserve": limits.reserve, "turns": [str(turn) for turn in turns]}
    async with asyncio.timeout(HUNG_AFTER), aiofiles.open(draft / "job.json", "w", executor=once) as file:
        await file.write(json.dumps(job))
    process = await asyncio.create_subprocess_exec(
        *children.bound(sys.executable, "-P", "-m", "gateway.store.datasets.convert", str(parquet), str(draft)),
        stdout=PIPE, stderr=PIPE, env=_environment(), limit=_LARGEST_ANSWER,
    )  # fmt: skip
    try:
        answer, errors = await _answer(process, limits.seconds)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _judge(process.returncode or 0, answer, errors, limits)


def _can_read() -> bool:
    """Whether pyarrow, which this process never imports, is installed."""
    return find_spec("pyarrow") is not None


async def _answer(process: Process, seconds: float) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_WAIT_FOR_TURN):
            line = await process.stdout.readline()
    except TimeoutError:
        raise ApiError(
            "SlowDown", "Other digest files are being read; try again in a minute.", headers={"Retry-After": "60"}
        ) from None
    try:
        async with asyncio.timeout(seconds):
            answer, errors = await process.communicate()
    except TimeoutError:
        raise ApiError("TooLarge", f"Reading the digest file took more than {seconds:g} s.") from None
    return (answer if line == READY else line + answer), errors


def _judge(status: int, answer: bytes, errors: bytes, limits: Limits) -> Converted:
    result: dict[str, Any] = {}
    try:
        result = json.loads(answer)
    except ValueError:
        pass
    if status == 0 and "id" in result:
        return Converted(**result)
    if result.get("code") == NO_SPACE:
        raise DiskFault(FailureKind.NO_SPACE, "no space for another dataset")
    if result.get("code") in (Limit.ITEMS, Limit.BYTES):
        raise GrantExceeded(Limit(result["code"]))
    if "code" in result:
        raise ApiError(result["code"], result["detail"])
    log.error(
        "reading a digest file failed with status %(status)d: %(error)s",
        {"status": status, "error": errors.decode("utf-8", "replace")[-2000:]},
    )
    raise ApiError(
        "InvalidDigestFile",
        f"The file cannot be read as Parquet within {limits.memory} bytes of memory; it is damaged, or its row groups or pages "
        "are too large.",
    )


def _environment() -> dict[str, str]:
    """The environment of the conversion: with one thread, because each thread reserves address space."""
    return children.environment() | {
        "PYTHONPATH": str(Path(gateway.__file__).resolve().parents[1]),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }
