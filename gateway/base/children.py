"""The environment of the processes that the gateway starts, and their end.

Each process is given its own environment. A process that inherits the gateway's would receive its secrets. It could also fail to
start: Python starts processes with vfork, so execve(2) reads the environment in the gateway's memory. While another thread
changes it with setenv(3), execve fails with EFAULT.

No child outlives the gateway, even if the gateway is killed with SIGKILL: Linux kills a child when the thread that started it
ends (PR_SET_PDEATHSIG, see prctl(2)). So the event loop's thread, which runs as long as the process, starts them. A small
launcher sets this up before exec, because Python code between fork and exec is unsafe in a process with threads.
"""

from __future__ import annotations

import os
import sys

_KEPT = frozenset({"PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR"})

_LAUNCHER = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0) != 0:
    sys.exit("prctl failed")
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def bound(*command: str) -> tuple[str, ...]:
    """The command that runs ``command`` as a process that ends when this process ends."""
    return (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command)


def environment() -> dict[str, str]:
    """The variables that programs need to start and to find their libraries; no secrets."""
    # Asked for by name: another thread may set and remove variables meanwhile.
    return {name: value for name in _KEPT if (value := os.environ.get(name)) is not None}
