"""The admin application over a real catalog, called through ASGI, with the parts of a worker that follow the catalog."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.admin.app import AdminApp
from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.database import CatalogDatabase
from gateway.admin.http.parts import AdminParts
from gateway.admin.http.tokens import Tokens
from gateway.api.s3.auth import Authenticator
from gateway.base.config import Credential, Origin, Rule, Settings
from gateway.base.config_catalog import AdminSettings
from gateway.model.errors import CatalogUnavailable, S3Error
from gateway.operate.features import FEATURES
from gateway.wiring.live import Changing, Live
from rig.signed_requests import ClientSigner

KEY = "b3VyLW93bi10ZXN0LWtleS1vZi0zMi1ieXRlcy0hISE="
TOKEN = "admin-token"
READ_TOKEN = "read-token"
ADDRESS = "http://gateway.test/bucket/key"


class Clock:
    """Seconds since the epoch, standing still until a test moves it; begins now, as signatures are made now."""

    def __init__(self) -> None:
        self.at = float(int(time.time()))

    def __call__(self) -> float:
        """The time."""
        return self.at


class _Origins:
    """A fake for the origin clients that records its origins."""

    origins: tuple[Origin, ...] = ()

    async def replace(self, origins: tuple[Origin, ...], _credentials: object) -> None:
        """Take over."""
        self.origins = origins


class UnreadDatabase(CatalogDatabase):
    """A database that cannot be read."""

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Fail."""
        raise CatalogUnavailable("lost")


class AdminWorld:
    """One worker's admin application, with the settings in force."""

    def __init__(self, catalog: Catalog, clock: Clock, file: Settings) -> None:
        self.catalog = catalog
        self.clock = clock
        self.authenticator = Authenticator(file)
        self.services = SimpleNamespace(rules=None)
        self.origins = _Origins()
        self.settled: list[dict[str, str]] = []
        self.may_settle = asyncio.Event()
        self.may_settle.set()
        changing = Changing(self.authenticator, self.services, self.origins, self._settle, lambda _: None)  # type: ignore[arg-type]
        self.live = Live(file, changing)
        catalog.follow(self.live.use_catalog)
        parts = AdminParts(catalog, lambda: self.live.file, lambda: self.live.effective)
        self.app = AdminApp(Tokens(file.admin, clock), parts, FEATURES)
        self.app.state.listings = None
        self.http: httpx.AsyncClient

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, url: str, key: str, file: Settings | None = None, home: Path | None = None, patience: float = 3.0
    ) -> AsyncIterator[AdminWorld]:
        """A worker over the catalog at ``url``, with ``home`` as its cache directory; ``patience``: of the database."""
        clock = Clock()
        catalog = Catalog(url, key, clock, home)
        catalog.database.patience = patience
        world = cls(catalog, clock, file or settings())
        try:
            await catalog.look()
            transport = httpx.ASGITransport(world.app, client=("192.0.2.7", 4711))
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway.test", headers=headers) as http:
                world.http = http
                yield world
        finally:
            await world.live.close()
            await catalog.close()

    async def _settle(self, endpoints: dict[str, str]) -> None:
        self.settled.append(endpoints)
        await self.may_settle.wait()

    async def ask(self, method: str, path: str, status: int, body: Any = None, **headers: str) -> Any:
        """Send a request, check the status, and return the answer's JSON; header names have "_" for "-"."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = {} if body is None else {"json": body}
        response = await self.http.request(method, f"/admin{path}", headers=named, **content)
        assert response.status_code == status, response.text
        if status >= 400:
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["status"] == status
        return response.json() if response.content else None

    async def create(self, **fields: Any) -> Any:
        """A new credential, with its secret."""
        return await self.ask("POST", "/credentials", 201, fields)

    def refusal(self, key: str, secret: str, way: str = "header") -> str:
        """The S3 code with which a request that is signed so is refused; empty when it is accepted."""
        request = getattr(ClientSigner(key, secret), way)("GET", ADDRESS)
        try:
            self.authenticator.authenticate(request, self.clock())
        except S3Error as error:
            return error.code
        return ""


def settings(*credentials: Credential, rules: tuple[Rule, ...] = ()) -> Settings:
    """A file with one origin, called default, and these credentials and rules."""
    return Settings(
        origins=(Origin(endpoint="http://127.0.0.1:1"),),
        credentials=credentials,
        rules=rules,
        admin=AdminSettings(token=TOKEN, read_token=READ_TOKEN),
    )
