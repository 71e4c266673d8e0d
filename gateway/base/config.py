"""Every setting, declared once: name, default, bounds and help. The reference in docs/configuration.md is checked against it.

A configuration is read from a TOML file, then from the environment (``LARDER_SECTION__KEY``; list items by number, as in
``LARDER_ORIGINS__0__ENDPOINT``; config_environment.py), then from command-line flags; the later wins. Anything unknown is refused
by its name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from redis.asyncio import ConnectionPool

from gateway.base.config_base import CostSettings, ResultSettings, Seconds, Section, Size, TenantLimit
from gateway.base.config_catalog import AdminSettings, DatabaseSettings
from gateway.base.config_environment import Sections, settings_in, variable
from gateway.base.config_mistakes import explain
from gateway.base.config_server import ServerSettings
from gateway.model.errors import ConfigError
from gateway.model.fleet import is_node_name
from gateway.model.units import parse_duration


def _parse_freshness(value: str | float) -> str | float:
    return value if value in ("always", "immutable") else parse_duration(value)


Freshness = Annotated[Literal["always", "immutable"] | float, BeforeValidator(_parse_freshness)]


_ENDPOINT = re.compile(r"(?i)https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?/*")

_LEAST_SPOOL = 128 * 1024**2
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  # nothing is bound here


def _has_port_in_range(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


class CacheSettings(Section):
    """The node's SSD cache."""

    dir: str = Field("./larder-cache", min_length=1, description="directory of the cache; created if missing")
    capacity: Size = Field(10 * 1000**3, ge=1, description="bytes of blobs kept on this node")
    block_size: Size = Field(
        4 * 1024**2,
        ge=4096,
        description="larger objects are cached in blocks of this size; small blocks make large objects slow",
    )
    reserve: Size = Field(
        1000**3,
        description="bytes of the file system that are never used; nothing is cached while it has less free",
    )
    max_fills: int = Field(256, ge=1, description="origin reads being stored at once per worker; more are not stored")
    entries: int = Field(20_000, ge=16, description="objects whose metadata each worker keeps in memory")
    open_files: int = Field(
        512, ge=8, description="blob files each worker keeps open; at most a quarter of its descriptors"
    )
    memory: Size | None = Field(
        None,
        description="bytes of small blobs (up to 128 KiB) that the node's workers together keep in memory, in equal parts; "
        "0: none; unset: a sixteenth of the machine's memory, at most 1 GiB",
    )
    eviction: Literal["lru", "lfu", "arc"] = Field(
        "lru",
        description="order in which blobs outside datasets' pools leave: least recently used, least frequently used, or "
        "adaptive; a change ranks all anew",
    )


class DatasetSettings(Section):
    """Datasets: the digest files that clients register. Each is read in a separate process, one at a time per tenant, two per
    node."""

    max_digest_file: Size = Field(4 * 1024**3, ge=1, description="largest digest file")
    read_memory: Size = Field(
        4 * 1024**3, ge=1024**3, description="address space of the process that reads a digest file"
    )
    read_time: Seconds = Field(600.0, gt=0, description="how long reading one digest file may take")
    tenant_registrations: int = Field(1000, ge=1, description="datasets that one tenant may have registered")
    tenant_items: int = Field(200_000_000, ge=1, description="items of all datasets that one tenant has registered")
    tenant_bytes: Size = Field(
        0,
        description="bytes of a node's cache disk that one tenant's registrations may take; 0: a tenth of "
        "cache.capacity, at least 64 MiB. All tenants' together may take half of it",
    )
    keep_unused: Seconds = Field(
        7 * 86_400.0,
        gt=0,
        description="how long a registration that a program made under the name of its content stays without use",
    )


class RedisSettings(Section):
    """Coordination."""

    url: str = Field("embedded", description='"embedded", redis://... or rediss://...')

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        if url == "embedded":
            return url
        if not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError('must be "embedded" or start with redis://, rediss:// or unix://')
        try:
            ConnectionPool.from_url(url).make_connection()  # type: ignore[no-untyped-call]
        except (ValueError, TypeError):
            # The exception text may contain the password.
            raise ValueError('must look like "redis://:password@host:6379/0"; a part of it cannot be read') from None
        return url


class FleetSettings(Section):
    """Several nodes as one cache: those with the same Redis (not "embedded"), the same secret and the same zone."""

    secret: str = Field(
        "",
        description="shared secret of the fleet's nodes, with a redis.url that all share; empty: this node is standalone",
        repr=False,
    )
    node: str = Field("", description="this node's id; empty: a random one kept in {cache.dir}/node")
    advertise: str = Field(
        "", description='"http://host:port" for other nodes and clients to reach this one; empty: where it listens'
    )
    zone: str = Field("default", description="nodes share only within their zone, such as a rack or a data centre")
    heartbeat: Seconds = Field(1.0, ge=0.05, le=60, description="interval of a node's heartbeats")
    expire: Seconds = Field(4.0, ge=0.2, le=600, description="silence after which a node counts as gone")

    @field_validator("node", "zone")
    @classmethod
    def _a_name(cls, name: str, info: ValidationInfo) -> str:
        if not is_node_name(name) and not (info.field_name == "node" and not name):
            raise ValueError("must have 1 to 64 characters out of A-Z a-z 0-9 . _ -")
        return name

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, secret: str) -> str:
        if secret and len(secret) < 16:
            raise ValueError("must have at least 16 characters; generate one with: openssl rand -hex 32")
        return secret

    @field_validator("advertise")
    @classmethod
    def _reachable(cls, advertise: str) -> str:
        if advertise and (not _ENDPOINT.fullmatch(advertise) or not _has_port_in_range(advertise)):
            raise ValueError('must look like "http://10.0.0.7:9000", without a path')
        return advertise.rstrip("/")

    @model_validator(mode="after")
    def _several_heartbeats(self) -> FleetSettings:
        if self.expire < 2 * self.heartbeat:
            raise ValueError("expire must be at least twice heartbeat, or a late heartbeat counts as a death")
        return self


class ManagerSettings(Section):
    """Division of the fleet's space among the datasets of training jobs."""

    probe_batches: int = Field(
        100,
        ge=0,
        le=1_000_000,
        description="mini-batches of one measurement of what a job gains from the cache; 0 disables measuring",
    )
    preload_bandwidth: Size = Field(
        0, description="bytes per second with which one node loads important items ahead; 0 means unlimited"
    )
    force_eviction: Seconds = Field(
        60.0,
        gt=0,
        description="without effect; accepted from older files",
    )
    job_expire: Seconds = Field(30.0, ge=1, le=86_400, description="silence after which a job is dropped")


class StreamSettings(Section):
    """Access streams: patterns recognised from plain S3 reads, for clients that change nothing (docs/streams.md)."""

    enabled: bool = Field(
        True, description="watch S3 reads, recognise their patterns, and keep and prefetch objects accordingly"
    )


class LogSettings(Section):
    """Format, level and destination of logs."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe level logged")
    format: Literal["json", "text"] = Field("json", description="one JSON object a line, or text for people")
    access: str = Field("", description='S3 access log: a file, "-" for standard output, empty for none')


class TracingSettings(Section):
    """Traces of requests by OpenTelemetry, whose OTEL_* variables set the exporter and the sampling."""

    enabled: bool = Field(False, description="trace requests; needs larder-gateway[tracing]")


class Origin(Section):
    """A real object store."""

    name: str = Field("default", min_length=1, description="name that credentials refer to")
    endpoint: str = Field(description="http:// or https:// address of the object store")
    region: str = Field("us-east-1", description="region used in signatures towards the origin")
    access_key_id: str = Field("", description="key of the origin; empty uses the AWS credential chain, if it has one")
    secret_access_key: str = Field("", description="secret of access_key_id", repr=False)
    session_token: str = Field("", description="session token of access_key_id, for temporary credentials", repr=False)
    connect_timeout: Seconds = Field(5.0, description="how long a connection to the origin may take to open")
    read_timeout: Seconds = Field(60.0, description="longest silence of the origin within one answer")
    check_timeout: Seconds = Field(
        2.0,
        gt=0,
        description="how long a freshness check may take before stale_if_error applies; "
        "an origin that is silent for so long, also to a probe, counts as lost",
    )
    max_connections: int = Field(256, ge=1, description="connections to the origin per worker")
    requester_pays: bool = Field(
        False, description="accept the charges of requester-pays buckets with every signed request"
    )

    @field_validator("endpoint")
    @classmethod
    def _an_address(cls, endpoint: str) -> str:
        if not _ENDPOINT.fullmatch(endpoint) or not _has_port_in_range(endpoint):
            raise ValueError(
                'must look like "https://s3.eu-west-1.amazonaws.com" or "http://127.0.0.1:5000", without a path'
            )
        return endpoint.rstrip("/")


class Credential(Section):
    """An access key of the gateway."""

    access_key_id: str = Field(min_length=1, description="access key that clients of the gateway use")
    secret_access_key: str = Field(min_length=1, description="its secret", repr=False)
    session_token: str = Field(
        "", description="token that must accompany the key, for temporary credentials", repr=False
    )
    previous_secret_access_key: str = Field(
        "", description="the secret before a rotation, accepted beside the new one until previous_expires", repr=False
    )
    previous_expires: str = Field("", description="ISO 8601 time until which previous_secret_access_key is accepted")
    expires: str = Field("", description="ISO 8601 time after which the key is refused; empty means never")
    tenant: str = Field("", description="name of the tenant, for logs and accounting; the access key when empty")
    origin: str = Field("default", description="name of the origin this key reads and writes")
    origin_access_key_id: str = Field("", description="this tenant's own key at the origin, instead of the origin's")
    origin_secret_access_key: str = Field("", description="secret of origin_access_key_id", repr=False)
    origin_session_token: str = Field("", description="session token of origin_access_key_id", repr=False)
    allow: tuple[str, ...] = Field(
        (), description='bucket/prefix globs this key may access, such as "bucket/train/**"; empty: all'
    )
    read_only: bool = Field(False, description="refuse every write of this key")

    @field_validator("allow")
    @classmethod
    def _globs(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        if "" in allow:
            raise ValueError("an empty glob matches nothing; leave allow out to allow all")
        if any(glob.startswith("[") for glob in allow):
            raise ValueError('a glob cannot start with "["; in the environment, globs are separated by commas')
        return allow

    @field_validator("expires", "previous_expires")
    @classmethod
    def _a_time(cls, expires: str) -> str:
        try:
            if expires:
                datetime.fromisoformat(expires)
        except ValueError:
            raise ValueError("is not an ISO 8601 time such as 2030-01-31T12:00:00Z") from None
        return expires

    @model_validator(mode="after")
    def _whole_pairs(self) -> Credential:
        if bool(self.origin_access_key_id) != bool(self.origin_secret_access_key):
            raise ValueError("the fields origin_access_key_id and origin_secret_access_key go together")
        if bool(self.previous_secret_access_key) != bool(self.previous_expires):
            raise ValueError("previous_secret_access_key and previous_expires go together")
        return self


class Rule(Section):
    """Caching of matching objects; the first matching rule of the file applies."""

    match: str = Field(min_length=1, description="glob over bucket/key: * within a segment, ** across them")
    freshness: Freshness = Field(
        600.0, description='"always" (ask the origin each time), "immutable" (never), or a time such as "10m"'
    )
    authorization: Literal["object", "prefix"] = Field(
        "object", description="a grant is for one object, or for all of its bucket that the rule matches"
    )
    grant: Seconds = Field(600.0, description="how long the origin's permission for a reader is remembered")
    cache: bool = Field(True, description="whether to cache matching objects")
    warm_on_write: bool = Field(
        False, description="keep what is written: the bytes of an upload as they pass, or read back"
    )
    pattern: Literal["auto", "sequential", "random", "skewed", "off"] = Field(
        "auto", description="how clients read these objects: recognised (auto), given, or not watched at all (off)"
    )
    stale_if_error: Seconds = Field(
        3600.0, description="how long past freshness to serve when the origin is unreachable"
    )
    listing: Literal["forward", "immutable"] = Field(
        "forward",
        description="who answers listings of a prefix that the rule covers: the origin, or, until a write through the gateways, "
        "a recorded one (immutable)",
    )
    hedge: Literal["off", "p90", "p95", "p99"] = Field(
        "off",
        description="send a read of the origin again once it waits longer than that share of reads do; at most 5 % more requests",
    )


class Settings(Section):
    """The whole configuration."""

    server: ServerSettings = ServerSettings()
    cache: CacheSettings = CacheSettings()
    datasets: DatasetSettings = DatasetSettings()
    redis: RedisSettings = RedisSettings()
    fleet: FleetSettings = FleetSettings()
    manager: ManagerSettings = ManagerSettings()
    streams: StreamSettings = StreamSettings()
    results: ResultSettings = ResultSettings()
    database: DatabaseSettings = DatabaseSettings()
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    cost: CostSettings = CostSettings()
    origins: tuple[Origin, ...] = Field((), description="object stores behind the gateway")
    credentials: tuple[Credential, ...] = Field((), description="access keys of the gateway")
    rules: tuple[Rule, ...] = Field((), description="caching rules, the first match applies")
    limits: tuple[TenantLimit, ...] = Field((), description="limits of tenants")

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if not self.origins:
            raise ValueError(
                "origins: at least one [[origins]] table with an endpoint is required, "
                f"here or as {variable('origins.0.endpoint')}"
            )
        names = [origin.name for origin in self.origins]
        _refuse_twice("origins", "name", names)
        _refuse_twice("credentials", "access_key_id", [c.access_key_id for c in self.credentials])
        _refuse_twice("limits", "tenant", [limit.tenant for limit in self.limits])
        for number, origin in enumerate(self.origins):
            if origin.access_key_id and not origin.secret_access_key:
                field = f"origins.{number}.secret_access_key"
                raise ValueError(f"{field}: is required with access_key_id, here or as {variable(field)}")
        for number, credential in enumerate(self.credentials):
            if credential.origin not in names:
                raise ValueError(
                    f"credentials.{number}.origin: unknown origin {credential.origin!r}; known: {', '.join(names)}"
                )
        if bool(self.server.tls_cert) != bool(self.server.tls_key):
            raise ValueError("server.tls_cert and server.tls_key go together")
        if self.server.tls_cert and self.server.unix_socket:
            raise ValueError("server.unix_socket: cannot be used together with server.tls_cert")
        if self.fleet.secret and self.redis.url == "embedded":
            raise ValueError(
                'fleet.secret: is set, but redis.url is "embedded", which other nodes cannot reach: '
                "set redis.url to the Redis that all nodes share, or remove fleet.secret"
            )
        if not self.database.sqlite and not self.database.encryption_key:
            raise ValueError(
                "database.encryption_key: is required with PostgreSQL, the same on all gateways; "
                "generate one with: openssl rand -base64 32 | tr +/ -_"
            )
        if self.in_fleet and not self.fleet.advertise and self.server.host in _EVERYWHERE:
            raise ValueError(
                f"fleet.advertise: is required with server.host {self.server.host!r}, to which other nodes cannot connect"
            )
        return self

    @property
    def catalog_url(self) -> str:
        """``database.url`` with its driver, and with ``{cache.dir}`` replaced."""
        return self.database.with_driver.replace("{cache.dir}", self.cache.dir)

    @property
    def spool(self) -> int:
        """Bytes that the spooled uploads of one worker may take."""
        share = self.cache.capacity // 10 // self.server.workers
        return self.server.spool or max(_LEAST_SPOOL, share)

    @property
    def in_fleet(self) -> bool:
        """Whether this node is part of a fleet: it has a shared Redis and a secret."""
        return self.redis.url != "embedded" and bool(self.fleet.secret)

    def origin(self, name: str) -> Origin:
        """The origin of that name; validation ensures that it exists."""
        return next(origin for origin in self.origins if origin.name == name)


def _refuse_twice(section: str, field: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{section}: {field} {value!r} appears twice")


def sections() -> Sections:
    """The tables of a configuration, with their keys."""
    tables = {}
    for name, field in Settings.model_fields.items():
        listed = get_origin(field.annotation) is tuple
        table: type[Section] = get_args(field.annotation)[0] if listed else field.annotation  # type: ignore[assignment]
        tables[name] = (listed, tuple(table.model_fields))
    return tables


def load_settings(
    path: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """Read, merge and check the configuration.

    Args:
        path: a TOML file, or ``None`` for defaults only.
        environ: environment whose ``LARDER_SECTION__KEY`` variables override the file.
        flags: dotted names (``"server.port"``) that override both.

    Raises:
        ConfigError: naming the invalid field and the remedy.
    """
    tree = read_toml(path) if path else {}
    given = [*settings_in(environ or {}), *((name, name.split("."), value) for name, value in (flags or {}).items())]
    for name, parts, value in given:
        _place(tree, parts, value, name)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        names = {".".join(parts): name for name, parts, _ in given}
        raise ConfigError(explain(error, path, names, sections())) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file, unchecked.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _place(tree: dict[str, Any], parts: list[str], value: Any, name: str) -> None:
    node: Any = tree
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(node, list):
            if not part.isdecimal() or int(part) > len(node):
                raise ConfigError(f"{name}: {part!r} must be a list position from 0 to {len(node)}")
            if int(part) == len(node):
                node.append({})
            key: Any = int(part)
        else:
            key = part
        if following is None:
            node[key] = (
                [piece.strip() for piece in value.split(",")] if part == "allow" and isinstance(value, str) else value
            )
        else:
            if isinstance(node, dict) and key not in node:
                node[key] = [] if following.isdecimal() else {}
            node = node[key]
            if not isinstance(node, (dict, list)):
                raise ConfigError(f"{name}: {'.'.join(parts)} is not a setting")
