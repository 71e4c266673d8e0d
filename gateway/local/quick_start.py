"""``larder-gateway serve`` without a configuration: finds the origin, makes a key for clients, and prints the variables to
export.

The origin's address comes from ``--origin``, or else from AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL, from the first start, or from
the other AWS settings: Amazon's endpoint for AWS_REGION or AWS_DEFAULT_REGION, then address and region of the profile. Its keys
come from the AWS credential chain.

The first start writes ``{cache.dir}/larder.toml`` with the origin, a key and an admin token; later starts read it. The shell that
starts it may have exported the printed variables, so every start checks that the origin is not the gateway's own address, and
that the origin's key is not the gateway's own.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.base.config import CacheSettings, Settings, load_settings, read_toml
from gateway.base.config_environment import settings_in
from gateway.base.imports import imported
from gateway.model.errors import ConfigError
from gateway.origin.credentials import is_chained

FILE = "larder.toml"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")
_IN_HOST = re.compile(r"(?:^|\.)s3[.-](?:dualstack\.)?([a-z]{2,}(?:-[a-z]+)+-[0-9]+)\.")
"""The region in the name of an S3 endpoint, as Amazon and most others build it."""
_USUAL_REGION = "us-east-1"
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")  # noqa: S104  # nothing is bound here
_LEAST_SPACE = 16 * 1024**2
"""Bytes that must be free at a first start; the catalog and the index of an empty cache take some of them."""
_HEADER = """\
# Written by the first `larder-gateway serve` without --config, which uses it again. Add what docs/configuration.md lists.
# --origin, AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL name another origin.
"""


class NamedOrigin(NamedTuple):
    """An object store: its address, the region of signatures, and which setting named it."""

    endpoint: str
    region: str
    named_by: str


@dataclass(frozen=True)
class QuickStart:
    """A start without a configuration.

    ``file`` has the key, at the latest after the first start; ``flags`` are the other settings. ``settings`` combines both; it
    has no key until the first start has made one.
    """

    file: Path
    flags: dict[str, Any]
    origin: NamedOrigin
    settings: Settings
    first: bool

    def keep(self, environ: Mapping[str, str]) -> Settings:
        """Write the file if this is the first start; returns the settings, now with a key.

        Raises:
            ConfigError: the file cannot be written.
        """
        if self.first:
            _write(self.file, self.origin)
        return load_settings(self.file, environ, self.flags)


def is_quick(config: Path | None, environ: Mapping[str, str]) -> bool:
    """Whether neither a file nor the environment configures origins or credentials."""
    tables = {parts[0] for _, parts, _ in settings_in(environ)}
    return config is None and not tables & {"origins", "credentials"}


def prepare(origin: str, environ: Mapping[str, str], flags: Mapping[str, Any]) -> QuickStart:
    """Find the origin, and the key of an earlier start.

    Args:
        origin: the address of ``--origin``; may be empty.
        environ: the variables.
        flags: the settings of the command line, by dotted names.

    Raises:
        ConfigError: there is no origin, or it is this gateway, or the key's file cannot be used.
    """
    file = _file(environ)
    place, first = origin_of(origin, environ, file), not file.exists()
    given = {"log.format": "text", **flags}
    if place.named_by != str(file):
        given |= {"origins.0.endpoint": place.endpoint, "origins.0.region": place.region}
    try:
        settings = load_settings(None if first else file, environ, given)
    except ConfigError as error:
        if place.named_by == str(file):
            raise
        # Name the source and the value: the origin comes from one of several places.
        raise ConfigError(str(error).replace("origins.0.endpoint:", f"{place.named_by}: {place.endpoint}")) from None
    if _is_own(place, settings):
        raise ConfigError(
            f"{place.named_by}: {place.endpoint} is this gateway's own address; name the object store behind it with --origin"
        )
    if not first and not settings.credentials:
        raise ConfigError(f"{file}: has no [[credentials]]; remove the file, and the next start writes a new one")
    return QuickStart(file, given, place, settings, first)


def refuse_own_key(settings: Settings, environ: Mapping[str, str]) -> None:
    """Refuse a clients' key in the variables of the origin's key; a shell that exported it for clients would pass it on.

    Raises:
        ConfigError: the origin would be sent a key of this gateway.
    """
    keys = [credential.access_key_id for credential in settings.credentials]
    if is_chained(settings.origins) and environ.get("AWS_ACCESS_KEY_ID") in keys:
        raise ConfigError(
            "AWS_ACCESS_KEY_ID: is a key of this gateway, which the origin does not know; unset it, or set a key of the origin"
        )


def origin_of(given: str, environ: Mapping[str, str], file: Path | None = None) -> NamedOrigin:
    """The origin that a command line, the AWS settings, or the file of an earlier start name.

    Raises:
        ConfigError: they name none, or the file cannot be read.
    """
    region = next((environ[name] for name in _REGIONS if environ.get(name)), "")
    for name, endpoint in (("--origin", given), *((variable, environ.get(variable, "")) for variable in _ENDPOINTS)):
        if endpoint:
            match = _IN_HOST.search(urlsplit(endpoint).hostname or "")
            return NamedOrigin(endpoint, match[1] if match else region or _USUAL_REGION, name)
    if file is not None and file.exists() and (kept := _kept(file)):
        return kept
    if region:
        return _amazon(region, next(name for name in _REGIONS if environ.get(name)))
    endpoint, region = imported("gateway.origin.chain").profile()
    if endpoint:
        return NamedOrigin(endpoint, region or _USUAL_REGION, "endpoint_url of the AWS profile")
    if region:
        return _amazon(region, "region of the AWS profile")
    if named := next((name for name in _KEYS if environ.get(name)), ""):
        return _amazon(_USUAL_REGION, f"{named} without AWS_REGION")
    raise ConfigError(
        "no origin: name the object store with --origin URL, with AWS settings (AWS_ENDPOINT_URL, AWS_REGION or an AWS profile), "
        "or in a file with --config; larder-gateway help serve has examples"
    )


def exports(settings: Settings, address: str, console: str, quick: QuickStart, environ: Mapping[str, str]) -> str:
    """The next steps for a person, with lines for a shell.

    Args:
        settings: of the gateway.
        address: where the gateway listens.
        console: where its pages are; may be empty.
        quick: how it was started.
        environ: the variables of the shell that started it.
    """
    own, url = settings.credentials[0], _from_here(address)
    lines = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": own.access_key_id,
        "AWS_SECRET_ACCESS_KEY": own.secret_access_key,
    }
    if not any(environ.get(name) for name in _REGIONS):
        lines["AWS_DEFAULT_REGION"] = quick.origin.region
    set_before = [name for name in (_ENDPOINTS[0], "AWS_SESSION_TOKEN") if environ.get(name)]
    return "\n".join(
        [
            f"origin:    {quick.origin.endpoint} ({quick.origin.named_by})",
            f"cache:     {quick.file.parent}, at most {settings.cache.capacity / 1000**3:g} GB",
            f"key:       kept in {quick.file}",
            *([f"dashboard: {_from_here(console)}/-/ with the admin token"] if console else []),
            "",
            "For S3 clients, and for larder-gateway status:",
            "",
            *(f"unset {name}" for name in set_before),
            *(f"export {name}={shlex.quote(value)}" for name, value in lines.items()),
            f"export LARDER_ENDPOINT={shlex.quote(url)} LARDER_ADMIN_TOKEN={shlex.quote(settings.admin.token)}",
            "",
        ]
    )


def _file(environ: Mapping[str, str]) -> Path:
    """Where a first start keeps what it makes."""
    given = {".".join(parts): value for _, parts, value in settings_in(environ)}
    return Path(given.get("cache.dir", CacheSettings().dir), FILE).absolute()


def _kept(file: Path) -> NamedOrigin | None:
    """The origin of an earlier start; ``None`` if its file names none, as those of 0.1 do."""
    match read_toml(file).get("origins"):
        case [{"endpoint": str() as endpoint, **rest}, *_]:
            return NamedOrigin(endpoint, str(rest.get("region", _USUAL_REGION)), str(file))
    return None


def _amazon(region: str, named_by: str) -> NamedOrigin:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return NamedOrigin(f"https://s3.{region}.{suffix}", region, named_by)


def _is_own(place: NamedOrigin, settings: Settings) -> bool:
    parts, server = urlsplit(place.endpoint), settings.server
    return parts.port == server.port != 0 and parts.hostname in (*_HERE, server.host)


def _from_here(address: str) -> str:
    """The address for clients on this machine, even if the gateway listens on all addresses."""
    return address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _write(file: Path, origin: NamedOrigin) -> None:
    """Write the file with a new key, unless another start has just written it."""
    access_key, secret = new_key()
    tables = {
        "[[origins]]": {"endpoint": origin.endpoint, "region": origin.region},
        "[[credentials]]": {"access_key_id": access_key, "secret_access_key": secret},
        "[admin]": {"token": new_token()},
    }
    text = _HEADER
    for title, table in tables.items():
        text += f"\n{title}\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (free := shutil.disk_usage(file.parent).free) < _LEAST_SPACE:
            raise OSError(errno.ENOSPC, f"only {free / 1024**2:.1f} MiB are free on its file system")
        with suppress(FileExistsError):
            write_new(file, text)
    except OSError as error:
        raise ConfigError(
            f"{file}: the gateway's key cannot be written: {error.strerror}; LARDER_CACHE__DIR names another folder"
        ) from None


def new_key() -> tuple[str, str]:
    """An access key for clients, and its secret."""
    records = imported("gateway.admin.catalog.records")
    return records.new_key(), records.new_secret().get_secret_value()


def new_token() -> str:
    """An admin token."""
    return secrets.token_hex(32)


def write_new(file: Path, text: str) -> None:
    """Write a file that only its owner can read, completely or not at all.

    Raises:
        FileExistsError: it exists.
        OSError: it cannot be written.
    """
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{FILE}-") as new:  # mode 0600
        new.write(text)
        new.flush()
        os.fsync(new.fileno())
        os.link(new.name, file)
