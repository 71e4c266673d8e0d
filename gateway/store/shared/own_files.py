"""Files of this user's gateways in a folder where every user may create files (``/dev/shm``).

Their names can be guessed, so another user may have created one first. Only a plain file of this user is accepted. It is opened
without following links, and without blocking, as a named pipe would block.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_own(path: Path, flags: int) -> int:
    """Open a plain file of this user. A new file gets mode 0600, and a wider mode of an existing file is narrowed.

    Raises:
        PermissionError: it belongs to another user, or is not a plain file.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, flags | _SAFELY, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "belongs to another user, or is not a plain file; remove it", str(path))
        if status.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_own(path: Path) -> bool:
    """Whether a path leads to something that this user owns, without following a link."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def read_own(path: Path) -> bytes:
    """The content of a file; empty if it is missing, or not this user's."""
    try:
        descriptor = open_own(path, os.O_RDONLY)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        return file.read()
