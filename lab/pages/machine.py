"""The machine that numbers were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str]:
    """The machine and the versions that the numbers were measured with."""
    nginx = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip()
    return {
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nginx": nginx.removeprefix("nginx version: "),
        **{name: version(name) for name in ("uvicorn", "uvloop", "httptools", "aiohttp", "aiobotocore")},
        "load average before": f"{os.getloadavg()[0]:.2f}",
    }


def in_a_line() -> str:
    """The machine, Python, day and load, as the pages of the evaluation name them."""
    return (
        f"{_processor()}; Python {platform.python_version()}; {time.strftime('%Y-%m-%d', time.gmtime())}; "
        f"load before: {os.getloadavg()[0]:.1f}"
    )


def _processor() -> str:
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return f"{cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores"
