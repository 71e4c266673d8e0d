"""``larder-gateway support``: one archive of the fleet's state to send for help, without secrets.

Logs have secrets, such as the keys that a first start prints. What the configuration and this command's environment keep secret
is hidden in them, and so is what looks like a secret. If the configuration cannot be read, the logs stay out: its secrets are not
known.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from gateway import __version__
from gateway.base.config import Settings, load_settings
from gateway.base.config_environment import settings_in
from gateway.base.config_secrets import secrets_of, without_secrets
from gateway.commands.common.connection import Admin, connected, token_of
from gateway.commands.common.grammar import asking, describe, size
from gateway.commands.common.output import document, line, named, note, printable
from gateway.model.errors import ConfigError, LarderError
from gateway.model.units import format_size
from gateway.operate.support.hiding import hide

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
_KEYS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Secrets of the environment that are no settings."""


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _support,
        "Write the fleet's state into one archive: overview, problems, plan, traffic, nodes, jobs, datasets, rules, recent\n"
        "changes and the metrics. Secrets and tokens are not in it; names of tenants, buckets and objects are. What cannot\n"
        "be had is named in missing.txt.\n\n"
        "In logs, the secrets of --config are hidden, and what is written as secrets are: values of names such as\n"
        "AWS_SECRET_ACCESS_KEY, token or password, signatures, Authorization, passwords in addresses, private keys.",
        "larder-gateway support --endpoint http://127.0.0.1:9000 --token-file /etc/larder/admin-token",
        "larder-gateway support --config /etc/larder/larder.toml --log /var/log/larder/larder.log --out support.tar.gz",
    )
    command.add_argument("--out", metavar="FILE", type=Path, help="the archive (larder-support-TIME.tar.gz)")
    command.add_argument("--config", metavar="FILE", type=Path, help="add this configuration, its secrets hidden")
    command.add_argument(
        "--log", metavar="FILE", type=Path, action="append", default=[], help="add the end of a log, its secrets hidden"
    )
    command.add_argument("--log-size", metavar="SIZE", type=size, default=_LOG, help="of the end of each log (8MiB)")
    asking(command)


def _support(options: Namespace) -> int:
    out = options.out or Path(time.strftime("larder-support-%Y%m%d-%H%M%S.tar.gz", time.gmtime()))
    missing: dict[str, str] = {}
    hidden: dict[str, Mapping[str, int]] = {}
    with connected(options) as admin:
        admin.get("overview")  # a wrong address or token is an error, not an empty archive
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"--out: {out} exists; name another file") from None
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, read in _parts(admin, options, hidden):
                try:
                    _put(archive, name, read())
                except (LarderError, OSError) as error:
                    missing[name] = str(error)
            said = "".join(f"{name}: {printable(why)}\n" for name, why in missing.items())
            _put(archive, "missing.txt", said.encode())
    written = out.stat().st_size
    if options.json:
        document({"file": str(out), "bytes": written, "missing": missing, "hidden": hidden})
        return 0
    for name, why in missing.items():
        note(f"without {name}: {why}")
    for name, replaced in hidden.items():
        line(f"hidden in {printable(name)}: {named(replaced) or 'nothing'}")
    line(
        f"{printable(str(out))} has {format_size(written)}; it names tenants, buckets and objects, {_secrets(options)}"
    )
    return 0


def _secrets(options: Namespace) -> str:
    """What can be said of secrets: in logs, those are hidden that are known, or have the name of one."""
    if not options.log:
        return "and has no secrets"
    if options.config is None:
        return "and in its logs hides what is written as a secret; --config hides all secrets of the configuration, too"
    return "and in its logs hides the secrets of the configuration and what is written as a secret"


def _parts(
    admin: Admin, options: Namespace, hidden: dict[str, Mapping[str, int]]
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names of the archive's files, each with the function that reads it; one that hides secrets adds to ``hidden``."""
    yield "version.txt", lambda: f"larder-gateway {__version__}, asked at {admin.endpoint}\n".encode()
    for path in _DOCUMENTS:
        yield f"{path.replace('/', '-')}.json", partial(_document, admin, path)
    for path in _LISTS:
        yield f"{path}.json", partial(_list, admin, path)
    yield "audit.json", partial(_list, admin, "audit", _CHANGES)
    yield "metrics.txt", admin.metrics
    if options.config is not None:
        yield "configuration.json", partial(_configuration, admin, options.config)

    def hiding(name: str, log: Path) -> bytes:
        shown = hide(_end(log, options.log_size), _known(admin, options))
        hidden[name] = shown.replaced
        return shown.text

    for number, log in enumerate(options.log):
        name = f"log-{number}-{log.name}"
        yield name, partial(hiding, name, log)


def _document(admin: Admin, path: str) -> bytes:
    return json.dumps(admin.get(path), indent=1).encode()


def _list(admin: Admin, path: str, most: int = 0) -> bytes:
    return json.dumps(list(admin.listed(path, most)), indent=1).encode()


def _configuration(admin: Admin, file: Path) -> bytes:
    return without_secrets(_settings(admin, file)).model_dump_json(indent=1).encode()


def _settings(admin: Admin, file: Path) -> Settings:
    """The configuration. Where it names no origin, as the file that ``serve`` of 0.1 wrote, the gateway is asked for it."""
    tables = {parts[0] for _, parts, _ in settings_in(os.environ)}
    with suppress(OSError, ValueError, RecursionError):  # load_settings says what is wrong
        tables |= set(tomllib.loads(file.read_text(encoding="utf-8")))
    flags = {}
    if "origins" not in tables:
        origin = admin.get("origins/default")
        flags = {f"origins.0.{name}": origin[name] for name in ("endpoint", "region")}
    return load_settings(file, os.environ, flags)


def _known(admin: Admin, options: Namespace) -> set[str]:
    """Secrets of the configuration, of the environment, and of this command."""
    known = {os.environ.get(name, "") for name in _KEYS} | {token_of(options)}
    if options.config is not None:
        known |= secrets_of(_settings(admin, options.config))
    return known


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
