"""The environment of the processes that the gateway starts.

Each of them is given one. A process that inherits the gateway's would receive its secrets. It could also fail to start: Python
starts processes with vfork, so execve(2) reads the environment in the gateway's memory. While another thread changes it with
setenv(3), execve fails with EFAULT.
"""

from __future__ import annotations

import os

_KEPT = frozenset({"PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR"})


def environment() -> dict[str, str]:
    """The variables that programs need to start and to find their libraries; no secret."""
    return {name: value for name, value in os.environ.items() if name in _KEPT}
