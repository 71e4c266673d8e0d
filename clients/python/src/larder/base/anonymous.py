"""Files without a name: shared memory that the kernel frees with its last descriptor, however its users end."""

from __future__ import annotations

import os
import tempfile


def anonymous_file(name: str) -> int:
    """A descriptor of an empty, unlinked file. The name shows in ``/proc`` only; nothing appears in ``/dev/shm``."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    fd, path = tempfile.mkstemp(prefix=f"{name}-")
    os.unlink(path)
    return fd
