"""The settings of the catalog and of the admin API; part of gateway/base/config.py."""

from __future__ import annotations

import re

from pydantic import Field, field_validator, model_validator
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from gateway.base.config_base import Section

_KEY = re.compile(r"[A-Za-z0-9_-]{43}=")
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_LAST_PORT = 65_535
_SENDABLE = re.compile(r"[\x21-\x7e]+")
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


class DatabaseSettings(Section):
    """The catalog: tenants, credentials, origins and rules that are changed while gateways run."""

    url: str = Field(
        "sqlite:///{cache.dir}/catalog.db",
        description="SQLAlchemy URL of the catalog: sqlite:///PATH for one machine, postgresql+asyncpg://... for a fleet "
        "(?ssl=require for TLS, ?ssl=verify-full with PGSSLROOTCERT checks the certificate too)",
    )
    encryption_key: str = Field(
        "",
        description="key of the catalog's secrets, 32 bytes in URL-safe base64 (openssl rand -base64 32 | tr +/ -_), the same on "
        "all gateways; empty with SQLite: a file beside the database, created at the first start",
        repr=False,
    )

    @field_validator("url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        try:
            known = make_url(url)
            backend = known.get_backend_name()
        except (ArgumentError, ValueError):
            # The exception text may contain the password.
            raise ValueError('must look like "postgresql+asyncpg://user:password@host:5432/larder"') from None
        if backend not in _DRIVERS or known.drivername not in (backend, _DRIVERS[backend]):
            raise ValueError("must start with sqlite:/// or postgresql+asyncpg://")
        if backend == "sqlite" and known.database in (None, "", ":memory:"):
            raise ValueError("must name a file, such as sqlite:////var/lib/larder/catalog.db")
        return url

    @field_validator("encryption_key")
    @classmethod
    def _a_key(cls, key: str) -> str:
        if key and not _KEY.fullmatch(key):
            raise ValueError(
                "must be 32 bytes in URL-safe base64; generate one with: openssl rand -base64 32 | tr +/ -_"
            )
        return key

    @property
    def with_driver(self) -> str:
        """The URL with the gateway's driver for this database."""
        scheme, _, rest = self.url.partition("://")
        return f"{_DRIVERS[scheme.partition('+')[0]]}://{rest}"

    @property
    def sqlite(self) -> bool:
        """Whether the catalog is a file on this machine."""
        return self.url.startswith("sqlite")


class AdminSettings(Section):
    """Access to the admin API, ``/-/admin``; without a token it is disabled."""

    token: str = Field("", description="bearer token for reading and changing everything", repr=False)
    read_token: str = Field("", description="bearer token for reading everything", repr=False)
    address: str = Field(
        "",
        description="HOST:PORT of operators' pages, the console and /-/docs, where no object is served; empty: server.host, and "
        "the port 10,000 above server.port (from 22,768 on, 20,000 below), or a free one if that is taken",
    )

    exclusive: bool = Field(
        False,
        description="serve /-/admin, /-/metrics, /-/readyz and /-/openapi.json at admin.address only, not to clients",
    )

    @property
    def open(self) -> bool:
        """Whether there is a token."""
        return bool(self.token or self.read_token)

    @field_validator("address")
    @classmethod
    def _a_listener(cls, address: str) -> str:
        if address and (not _ADDRESS.fullmatch(address) or int(address.rpartition(":")[2]) > _LAST_PORT):
            raise ValueError('must look like "127.0.0.1:9001" or "[::1]:9001", without a path')
        return address

    @field_validator("token", "read_token")
    @classmethod
    def _can_be_sent(cls, token: str) -> str:
        if token and not _SENDABLE.fullmatch(token):
            raise ValueError(
                "must consist of printable ASCII characters without spaces; generate one with: openssl rand -hex 32"
            )
        return token

    @model_validator(mode="after")
    def _two_tokens(self) -> AdminSettings:
        if self.token and self.token == self.read_token:
            raise ValueError("read_token must differ from token, or it could change everything")
        return self
