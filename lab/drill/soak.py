"""``python -m lab.drill.soak --minutes N``: mixed verified load on a gateway with one worker, and its memory every minute.

The gateway is a process of its own with a small cache that evicts all the time, and little memory for small blobs. The exit
status is 1 when a byte was wrong, blobs took more memory than they may, or the gateway's log has a traceback.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientSession

from lab.drill.soak_origin import Origin
from lab.drill.soak_traffic import ADMIN_TOKEN, Traffic
from rig.signed_requests import ClientSigner

_MEMORY = 2_000_000
"""Bytes of blobs in memory: a part of what is read again and again."""
_SIGNER = ClientSigner("SOAK", "the secret of the soak")
_CONFIGURATION = """
[server]
port = 0
[cache]
dir = "{home}/cache"
capacity = "60MB"
block_size = "1MiB"
reserve = "0"
entries = 500
open_files = 64
memory = {memory}
[manager]
job_expire = "20s"
[admin]
token = "{token}"
[log]
level = "warning"
[[origins]]
endpoint = "{origin}"
access_key_id = "origin"
secret_access_key = "origin-secret"
[[credentials]]
access_key_id = "{key}"
secret_access_key = "{secret}"
tenant = "soak"
[[rules]]
match = "**"
freshness = "20s"
grant = "20s"
"""


@asynccontextmanager
async def _gateway(home: Path, origin: str) -> AsyncIterator[tuple[str, int]]:
    """A running gateway: its address, and the process whose memory counts."""
    config = home / "larder.toml"
    key, secret = _SIGNER.access_key_id, _SIGNER.secret_access_key
    config.write_text(
        _CONFIGURATION.format(home=home, origin=origin, token=ADMIN_TOKEN, key=key, secret=secret, memory=_MEMORY)
    )
    with (home / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway",
            "serve",
            "--config",
            str(config),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        if "listening on " not in line:
            raise RuntimeError(f"the gateway did not start: {(home / 'log').read_text()}")
        yield line.split("listening on ")[1].strip(), _worker(process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _worker(pid: int) -> int:
    """The serving Python process below ``pid``: ``pid`` itself if there is only one worker."""
    pids = [pid]
    for each in pids:
        pids += [int(child) for child in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    python = [each for each in pids if "python" in os.readlink(f"/proc/{each}/exe")]
    return max(python, key=_resident)


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _mapped_files(pid: int) -> int:
    """Resident bytes of files and shared memory, which the kernel can take back."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


async def _blobs_in_memory(endpoint: str) -> int:
    """Bytes of blobs that the gateway says it keeps in memory."""
    async with ClientSession() as session, session.get(f"{endpoint}/-/metrics") as answer:
        text = await answer.text()
    (sample,) = re.findall(r"^larder_memory_blob_bytes (\S+)$", text, re.MULTILINE)
    return int(float(sample))


async def _report(pid: int, traffic: Traffic, origin: Origin, every: float) -> None:
    """Print a row every so often.

    Raises:
        RuntimeError: blobs take more memory than they may.
    """
    began = time.monotonic()
    while True:
        resident, files, blobs = _resident(pid), _mapped_files(pid), await _blobs_in_memory(traffic.endpoint)
        if blobs > _MEMORY:
            raise RuntimeError(f"blobs take {blobs} bytes of memory, and may take {_MEMORY}")
        row = {
            "minutes": round((time.monotonic() - began) / 60, 1), "rss_mb": round(resident / 1e6, 1),
            "private_mb": round((resident - files) / 1e6, 1), "blobs_mb": round(blobs / 1e6, 2),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "steps": traffic.steps.total(), "origin": origin.requests,
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        await asyncio.sleep(every)


async def soak(minutes: float, rate: float, every: float = 60.0) -> int:
    """Run the soak test; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="larder-soak-") as folder:
        home, origin = Path(folder), Origin()
        address = await origin.start()
        try:
            async with _gateway(home, address) as (endpoint, pid):
                print(json.dumps({"endpoint": endpoint, "worker": pid, "home": folder}), flush=True)
                traffic = Traffic(endpoint, _SIGNER, home, rate)
                reporting = asyncio.create_task(_report(pid, traffic, origin, every))
                loading = asyncio.create_task(traffic.run(60 * minutes))
                try:
                    await asyncio.wait((reporting, loading), return_when=asyncio.FIRST_COMPLETED)
                    await (loading if loading.done() else reporting)
                finally:
                    reporting.cancel()
                    loading.cancel()
                print(json.dumps(traffic.steps), flush=True)
        finally:
            await origin.stop()
        log = (home / "log").read_text(errors="replace")
        print(log[-3000:], file=sys.stderr)
        return int("Traceback" in log)


def main() -> int:
    """Run the command."""
    parser = ArgumentParser(prog="python -m lab.drill.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=float, default=60, help="steps per second (60)")
    parser.add_argument("--every", type=float, default=60, help="seconds between two lines (60)")
    options = parser.parse_args()
    return asyncio.run(soak(options.minutes, options.rate, options.every))


if __name__ == "__main__":
    sys.exit(main())
