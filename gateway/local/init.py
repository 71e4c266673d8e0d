"""``larder-gateway init``: writes a first configuration, with a key for clients and an admin token."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from gateway.base.config import load_settings
from gateway.commands.common.grammar import describe, jsonable, size
from gateway.commands.common.output import document, hint, line
from gateway.local.quick_start import FILE, new_key, new_token, origin_of, write_new
from gateway.model.errors import ConfigError
from gateway.model.units import format_size

_CAPACITY = 100 * 1000**3
_TEMPLATE = """\
# Configuration of a Larder gateway. docs/configuration.md lists all settings with their defaults. Each may also be set by the
# environment, as LARDER_CACHE__CAPACITY: secrets are best given so.

[server]
# host = "0.0.0.0"              # all addresses; without it only this machine reaches the gateway
# port = 9000

# The gateway keeps some of the file system free, whatever the capacity is.
[cache]
dir = {dir}
capacity = {capacity}

[[origins]]
name = "default"
endpoint = {endpoint}
region = {region}
# access_key_id = "its key"     # without keys here: the AWS credential chain
# secret_access_key = "the key's secret"

# For clients; `larder-gateway credentials create` makes more.
[[credentials]]
access_key_id = {access_key_id}
secret_access_key = {secret_access_key}
# allow = ["datasets/imagenet/**"]  # without it: all buckets

# The token opens the console and the admin API.
[admin]
token = {token}

# [[rules]]
# match = "datasets/**"
# freshness = "immutable"       # never changes; everything else is checked after 10 minutes

# Several gateways that are one cache need a Redis and a secret in common (docs/deploy.md):
# [redis]
# url = "redis://10.0.0.5:6379"
# [fleet]
# secret = "a long random string, the same on all nodes"
# advertise = "http://10.0.0.11:9000"  # this node, as the others reach it
"""


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _init,
        "Write a commented configuration with a new key for clients and a new admin token. The origin is --origin, else what\n"
        "the AWS settings name, as for serve. A file that exists is not changed.",
        "larder-gateway init --origin https://s3.eu-west-1.amazonaws.com",
        "larder-gateway init /etc/larder/larder.toml --cache-dir /var/cache/larder --capacity 500GB",
    )
    command.add_argument("file", metavar="FILE", type=Path, nargs="?", default=Path(FILE), help=f"({FILE})")
    command.add_argument("--origin", metavar="URL", default="", help="the object store to cache")
    command.add_argument("--cache-dir", metavar="DIR", type=Path, default=Path("larder-cache"), help="(./larder-cache)")
    command.add_argument("--capacity", metavar="SIZE", type=size, default=_CAPACITY, help="of the cache (100GB)")
    jsonable(command)


def _init(options: Namespace) -> int:
    origin = origin_of(options.origin, os.environ)
    access_key_id, secret_access_key = new_key()
    values = {
        "dir": str(options.cache_dir.absolute()),
        "capacity": format_size(options.capacity).replace(" ", ""),
        "endpoint": origin.endpoint,
        "region": origin.region,
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "token": new_token(),
    }
    file: Path = options.file
    try:
        write_new(file, _TEMPLATE.format_map({name: json.dumps(value) for name, value in values.items()}))
    except FileExistsError:
        raise ConfigError(f"FILE: {file} exists; remove it, or name another") from None
    except OSError as error:
        raise ConfigError(f"FILE: {file} cannot be written: {error.strerror}") from None
    try:
        load_settings(file, {})
    except ConfigError as error:
        file.unlink()
        message = str(error).removeprefix(f"{file}: ")
        raise ConfigError(message.replace("origins.0.endpoint:", f"{origin.named_by}: {origin.endpoint}")) from None
    if options.json:
        document({"file": str(file), "endpoint": origin.endpoint, "access_key_id": access_key_id})
        return 0
    line(f"{file} has a key for clients ({access_key_id}) and an admin token; only you can read it. Next:")
    line(f"  {hint('check-config', str(file), '--origin', 'default')}")
    line(f"  {hint('serve', '--config', str(file))}")
    return 0
