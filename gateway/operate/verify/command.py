"""``larder-gateway verify``: a cache directory on this machine, or, with ``--remote``, those of the running fleet."""

from __future__ import annotations

import asyncio
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.base.config import load_settings
from gateway.commands.common.connection import connected, path
from gateway.commands.common.grammar import asking, describe
from gateway.commands.common.output import Column, document, hint, line, note, number, printable, size, table
from gateway.commands.common.progress import ProgressStep, amounts, watch
from gateway.model.errors import ConfigError
from gateway.store.verify import verify_cache

_GOING = frozenset({"queued", "running"})
_COLUMNS = (
    Column("node"),
    Column("state"),
    Column("blobs", shown=number),
    Column("bytes", shown=size),
    Column("corrupt", shown=number),
    Column("missing", shown=number),
    Column("orphans", shown=number),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _verify,
        "Compare every blob with its digest, and the index with the disk; exit status 1 if anything is wrong.\n"
        "It changes nothing, so a gateway may run at the same time. With --remote the nodes of the running fleet each verify\n"
        "their cache, and continue if this command is interrupted.",
        "larder-gateway verify --config /etc/larder/larder.toml",
        "larder-gateway verify --remote",
        "larder-gateway verify --remote --node node-2 --json",
    )
    command.add_argument("--config", metavar="FILE", type=Path, help="configuration whose cache.dir to verify")
    command.add_argument(
        "--repair", action="store_true", help="drop defective blobs; only while no gateway uses this cache"
    )
    command.add_argument("--remote", action="store_true", help="verify the caches of the running fleet")
    command.add_argument("--node", metavar="NODE", action="append", help="with --remote: only this node; repeatable")
    command.add_argument("--watch", metavar="ID", help="with --remote: watch a running verification")
    asking(command)


def _verify(options: Namespace) -> int:
    if not options.remote and (options.node or options.watch):
        raise ConfigError("--node and --watch go with --remote")
    if options.remote and (options.config or options.repair):
        raise ConfigError("--config and --repair are for a local cache, not for --remote")
    return _remotely(options) if options.remote else _here(options)


def _here(options: Namespace) -> int:
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


def _remotely(options: Namespace) -> int:
    with connected(options) as admin:
        name = options.watch
        if name is None:
            name = str(admin.ask("POST", "verifications", {"nodes": options.node} if options.node else {})["id"])
        try:
            note(f"verification {name}")
            ended = watch(lambda: admin.get(path("verifications", name)), _step, _is_over)
        except KeyboardInterrupt:
            note(f"\nit continues; to watch it: {hint('verify', '--remote', '--watch', name)}")
            raise
    nodes = ended.get("nodes", [])
    if options.json:
        document(ended)
    else:
        table(_COLUMNS, nodes)
        _complain(nodes)
    return 0 if all(map(_is_sound, nodes)) else 1


def _is_over(state: Mapping[str, Any]) -> bool:
    return not any(node.get("state") in _GOING for node in state.get("nodes", []))


def _is_sound(node: Mapping[str, Any]) -> bool:
    return node.get("state") == "done" and not any(node.get(kind) for kind in ("corrupt", "missing", "orphans"))


def _step(state: Mapping[str, Any]) -> ProgressStep:
    nodes = state.get("nodes", [])
    blobs, read = (sum(node.get(name) or 0 for node in nodes) for name in ("blobs", "bytes"))
    return ProgressStep(
        sum(_share(node) for node in nodes), len(nodes) or None, amounts(blobs, None, read, None, "blobs")
    )


def _share(node: Mapping[str, Any]) -> float:
    return float(node.get("share") or 0.0) if node.get("state") in _GOING else 1.0


def _complain(nodes: Iterable[Mapping[str, Any]]) -> None:
    for node in nodes:
        name = printable(str(node.get("node")))
        if node.get("failure"):
            line(f"{name}: {printable(str(node['failure']))}")
        for example in node.get("examples") or ():
            line(f"{name}: {printable(str(example))}")
