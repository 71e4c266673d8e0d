"""Running ``convert`` as a process of its own: what a digest file makes the reader do, it cannot do to the gateway."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gateway
from gateway.model.datasets import ApiError
from gateway.policies.breaker import FailureKind
from gateway.store.failures import DiskFault

log = logging.getLogger("larder.datasets")

READY = b"ready\n"
NO_SPACE = "NoSpace"
"""How the converter says that the disk is full, which is nobody's mistake."""
_WAIT_FOR_TURN = 120.0
_LARGEST_ANSWER = 64 * 1024
_KEPT = frozenset({"PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What one conversion may use, on a node where one runs at a time.

    ``memory`` is address space in bytes; ``seconds`` is time on the clock; ``output`` is bytes of files written; ``reserve`` is
    bytes of the file system that stay free.
    """

    memory: int = 4 * 1024**3
    seconds: float = 600.0
    output: int = 16 * 1024**3
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Converted:
    """What a digest file was found to list; ``tag`` names the content's folder."""

    id: str
    tag: str
    items: int
    size: int


async def convert(parquet: Path, draft: Path, limits: Limits, allow: tuple[str, ...], turn: Path) -> Converted:
    """Turn a digest file into a dataset's files.

    Args:
        parquet: the digest file.
        draft: where ``content/`` and ``locations`` are made.
        limits: what it may use.
        allow: globs that every item's ``bucket/key`` must match one of; empty: all may be.
        turn: the lock that lets one conversion run at a time on this node.

    Raises:
        ApiError: InvalidDigestFile, TooLarge, AccessDenied; SlowDown when others were still before it.
        DiskFault: there is no room for the result.
    """
    job = {"allow": allow, "memory": limits.memory, "output": limits.output, "reserve": limits.reserve}
    (draft / "job.json").write_text(json.dumps({**job, "turn": str(turn)}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "gateway.store.datasets.convert", str(parquet), str(draft),
        stdout=PIPE, stderr=PIPE, env=_environment(), limit=_LARGEST_ANSWER,
    )  # fmt: skip
    try:
        answer, errors = await _answer(process, limits.seconds)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _judge(process.returncode or 0, answer, errors, limits)


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
        raise DiskFault(FailureKind.NO_SPACE, "there is no room for another dataset")
    if "code" in result:
        raise ApiError(result["code"], result["detail"])
    log.error("a digest file ended its reader with status %d: %s", status, errors.decode("utf-8", "replace")[-2000:])
    raise ApiError(
        "InvalidDigestFile",
        f"The file cannot be read as Parquet within {limits.memory} bytes of memory; it is damaged, or its row groups or pages "
        "are too large.",
    )


def _environment() -> dict[str, str]:
    """Nothing of the gateway's, whose environment has secrets; and one thread, because each reserves address space."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT}
    return kept | {
        "PYTHONPATH": str(Path(gateway.__file__).resolve().parents[1]),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }
