"""Results as files: the numbers as JSON, and a page for people."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str]:
    """Where and with what the numbers were measured."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    nginx = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip()
    return {
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": f"{cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nginx": nginx.removeprefix("nginx version: "),
        **{name: version(name) for name in ("uvicorn", "uvloop", "httptools", "aiohttp", "aiobotocore")},
        "load average before": f"{os.getloadavg()[0]:.2f}",
    }


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def verdict(value: float, budget: float) -> str:
    """A measured ratio against its budget."""
    return f"{value:.2f} {'≤' if value <= budget else '**>**'} {budget:g}"


def write(name: str, title: str, text: str, data: dict[str, Any], where: dict[str, str]) -> None:
    """Write ``results/NAME.md`` and ``.json``, and print the page."""
    RESULTS.mkdir(exist_ok=True)
    about = "\n".join(f"- {key}: {value}" for key, value in where.items())
    page = f"# {title}\n\n{text}\n\n{about}\n"
    (RESULTS / f"{name}.md").write_text(page)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": where, **data}, indent=1) + "\n")
    print(page)
