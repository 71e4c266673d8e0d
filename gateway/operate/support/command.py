"""``larder-gateway support``: one archive of the fleet's state to send for help, without secrets."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gateway import __version__
from gateway.base.config import load_settings
from gateway.base.config_secrets import without_secrets
from gateway.commands.common.connection import Admin, connected
from gateway.commands.common.grammar import asking, describe, size
from gateway.commands.common.output import document, line, note, printable
from gateway.model.errors import ConfigError, LarderError
from gateway.model.units import format_size

_DOCUMENTS = ("overview", "overview/history", "problems", "problems/past", "traffic", "plan", "rules", "explain/misses")
_LISTS = (
    "nodes",
    "origins",
    "tenants",
    "credentials",
    "datasets",
    "jobs",
    "pipelines",
    "streams",
    "results",
    "warmups",
)
_CHANGES = 500
"""The most entries of the audit log in the archive."""
_LOG = 8 * 1024**2
"""Bytes taken from the end of each log, by default."""


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _support,
        "Write the fleet's state into one archive: overview, problems, plan, traffic, nodes, jobs, datasets, rules, recent\n"
        "changes and the metrics. Secrets and tokens are not in it; names of tenants, buckets and objects are. What cannot\n"
        "be had is named in missing.txt.",
        "larder-gateway support --endpoint http://127.0.0.1:9000 --token-file /etc/larder/admin-token",
        "larder-gateway support --config /etc/larder/larder.toml --log /var/log/larder/larder.log --out support.tar.gz",
    )
    command.add_argument("--out", metavar="FILE", type=Path, help="the archive (larder-support-TIME.tar.gz)")
    command.add_argument("--config", metavar="FILE", type=Path, help="add this configuration, its secrets hidden")
    command.add_argument("--log", metavar="FILE", type=Path, action="append", default=[], help="add the end of a log")
    command.add_argument("--log-size", metavar="SIZE", type=size, default=_LOG, help="of the end of each log (8MiB)")
    asking(command)


def _support(options: Namespace) -> int:
    out = options.out or Path(time.strftime("larder-support-%Y%m%d-%H%M%S.tar.gz", time.gmtime()))
    missing: dict[str, str] = {}
    with connected(options) as admin:
        admin.get("overview")  # a wrong address or token is an error, not an empty archive
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"--out: {out} exists; name another file") from None
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, read in _parts(admin, options):
                try:
                    _put(archive, name, read())
                except (LarderError, OSError) as error:
                    missing[name] = str(error)
            said = "".join(f"{name}: {printable(why)}\n" for name, why in missing.items())
            _put(archive, "missing.txt", said.encode())
    written = out.stat().st_size
    if options.json:
        document({"file": str(out), "bytes": written, "missing": missing})
        return 0
    for name, why in missing.items():
        note(f"without {name}: {why}")
    line(f"{printable(str(out))} has {format_size(written)}; it names tenants, buckets and objects, and has no secrets")
    return 0


def _parts(admin: Admin, options: Namespace) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names of the archive's files, each with the function that reads it."""
    yield "version.txt", lambda: f"larder-gateway {__version__}, asked at {admin.endpoint}\n".encode()
    for path in _DOCUMENTS:
        yield f"{path.replace('/', '-')}.json", partial(_document, admin, path)
    for path in _LISTS:
        yield f"{path}.json", partial(_list, admin, path)
    yield "audit.json", partial(_list, admin, "audit", _CHANGES)
    yield "metrics.txt", admin.metrics
    if options.config is not None:
        yield "configuration.json", partial(_configuration, options.config)
    for number, log in enumerate(options.log):
        yield f"log-{number}-{log.name}", partial(_end, log, options.log_size)


def _document(admin: Admin, path: str) -> bytes:
    return json.dumps(admin.get(path), indent=1).encode()


def _list(admin: Admin, path: str, most: int = 0) -> bytes:
    return json.dumps(list(admin.listed(path, most)), indent=1).encode()


def _configuration(file: Path) -> bytes:
    return without_secrets(load_settings(file, os.environ)).model_dump_json(indent=1).encode()


def _end(log: Path, most: int) -> bytes:
    """The last bytes of a log, starting at the beginning of a line."""
    with log.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - most))
        end = file.read(most)
    return end if length <= most else end.partition(b"\n")[2]


def _put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"larder-support/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(content))
