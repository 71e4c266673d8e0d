"""``larder-gateway verify``."""

from __future__ import annotations

import asyncio
import os
import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from gateway.commands.grammar import describe, jsonable
from gateway.commands.output import document, line
from gateway.config import load_settings
from gateway.store.verify import verify_cache


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    describe(
        command,
        _verify,
        "Compare every blob with its digest, and the index with the disk; exit status 1 if anything is wrong.\n"
        "It only looks, so a gateway may run meanwhile.",
        "larder-gateway verify --config /etc/larder/larder.toml",
    )
    command.add_argument("--config", metavar="FILE", type=Path, help="configuration whose cache.dir is verified")
    command.add_argument(
        "--repair", action="store_true", help="drop what is wrong; only while no gateway runs on this cache"
    )
    jsonable(command)


def _verify(options: Namespace) -> int:
    settings = load_settings(options.config, os.environ)
    started = time.monotonic()
    report = asyncio.run(verify_cache(settings.cache, repair=options.repair))
    if options.json:
        document({**asdict(report), "sound": report.sound})
    else:
        if not report.sound or report.repaired:
            line(report.describe())
        verdict = "no problem found" if report.sound else "PROBLEMS FOUND"
        line(f"{report.blobs} blobs, {report.bytes} bytes in {time.monotonic() - started:.1f} s: {verdict}")
    return 0 if report.sound else 1
