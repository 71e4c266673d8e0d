"""The identity of a node: a name that lasts as long as its cache, a token per start, and its address."""

from __future__ import annotations

import os
import platform
import time
import uuid
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from gateway.model.fleet import is_node_name

_MACHINE_BOOT = Path("/proc/sys/kernel/random/boot_id")


def new_boot() -> str:
    """A token of a start. A later start at the same place has a greater token, unless the clock was set back."""
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:16]}"


def kept_id(cache: Path, boot: str) -> str:
    """The name in ``cache/node``, created if missing.

    The blobs of a cache are found by the name of its node, so the name stays with them. Workers that start together get the same
    name: the file is created atomically, once. In a read-only directory the name lasts until the next start.
    """
    kept = cache / "node"
    draft = cache / f"node-{uuid.uuid4().hex}"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (name := _read(kept)) is not None:
            return name
        draft.touch(mode=0o600)
        draft.write_text(f"{uuid.uuid4().hex[:16]}\n")
        try:
            with suppress(FileExistsError):
                os.link(draft, kept)
        finally:
            draft.unlink()
        if (name := _read(kept)) is not None:
            return name
    except OSError:
        pass
    return id_of_boot(boot)


def id_of_boot(boot: str) -> str:
    """The name of a node that cannot store one: it lasts until the next start."""
    return f"boot-{sha256(boot.encode()).hexdigest()[:16]}"


def _read(kept: Path) -> str | None:
    try:
        name = kept.read_text().strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return name if is_node_name(name) else None


@cache  # every heartbeat needs it
def place_of(address: str) -> str:
    """A short fingerprint of an address on this host. Only one process can listen on it, so the previous process there must have
    ended."""
    try:
        machine = _MACHINE_BOOT.read_text().strip()
    except OSError:
        machine = ""
    return sha256(f"{address}\n{platform.node()}\n{machine}".encode()).hexdigest()[:16]
