"""Authorization of the admin addresses: every endpoint with every kind of token, and with none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from gateway.admin.app import LARGEST_BODY, AdminApp
from gateway.admin.endpoints import routers
from gateway.admin.http.roles import PREFIX
from gateway.admin.http.tokens import Tokens
from gateway.base.config import load_settings
from gateway.base.config_catalog import AdminSettings
from gateway.model.errors import ConfigError
from gateway.operate.features import FEATURES
from tests.admin.admin_world import READ_TOKEN, TOKEN, AdminWorld


def endpoints() -> Iterator[tuple[str, str]]:
    """Every method and address that there is."""
    for router in routers(FEATURES):
        for route in router.routes:
            if isinstance(route, APIRoute):
                yield from ((method, PREFIX + route.path_format) for method in sorted(route.methods or ()))


async def answer(app: AdminApp, method: str, path: str, **headers: str) -> httpx.Response:
    """Send a request with these headers only."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway.test") as http:
        return await http.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )


async def test_no_token_no_admin_addresses() -> None:
    """Rule: a gateway without tokens refuses all admin addresses, and names the setting that opens them."""
    app = AdminApp(Tokens(AdminSettings()), None, FEATURES)
    for method, path in [*endpoints(), ("GET", "/admin/nothing")]:
        refused = await answer(app, method, path, Authorization="Bearer anything")
        assert (refused.status_code, refused.json()["code"]) == (403, "AdminDisabled")
        assert "admin.token" in refused.json()["detail"]


async def test_every_address_wants_a_token(begun: str) -> None:
    """Rule: a missing token, a wrong one, or another scheme gets 401 with the challenge, before the request is examined."""
    async with AdminWorld.opened(begun, "") as world:
        for method, path in [*endpoints(), ("GET", "/admin/nothing"), ("POST", "/admin")]:
            for sent in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {TOKEN}"},
                {"Authorization": TOKEN},
            ):
                refused = await answer(world.app, method, path, **sent)
                assert (refused.status_code, refused.json()["code"]) == (401, "Unauthorized"), (method, path)
                assert refused.headers["www-authenticate"].startswith("Bearer")


async def test_the_read_token_changes_nothing(begun: str) -> None:
    """Rule: the read token is refused by the method, at every address; GET is answered, and a check of rules, which only asks."""
    async with AdminWorld.opened(begun, "") as world:
        seen = set()
        for method, path in endpoints():
            refused = await answer(world.app, method, path, Authorization=f"Bearer {READ_TOKEN}")
            seen.add(method)
            if method == "GET" or path.endswith("/rules/check"):
                assert refused.status_code not in (401, 403), (path, refused.text)
            else:
                assert (refused.status_code, refused.json()["code"]) == (403, "ReadOnlyToken"), (method, path)
        assert seen >= {"GET", "POST", "PUT", "PATCH", "DELETE"}
        assert (await world.ask("GET", "/audit", 200))["items"] == []


@pytest.mark.parametrize(
    "sent",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://gateway.test.evil.test"},
        {"Origin": "http://gateway.test:81"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "cross-site", "Origin": "http://gateway.test"},
    ],
)
async def test_pages_of_other_sites_are_refused(begun: str, sent: dict[str, str]) -> None:
    """Rule: other sites' pages are refused also with the right token, in case a proxy adds it; no CORS header permits them."""
    async with AdminWorld.opened(begun, "") as world:
        for method in ("GET", "POST", "OPTIONS"):
            refused = await answer(world.app, method, "/admin/tenants", Authorization=f"Bearer {TOKEN}", **sent)
            assert (refused.status_code, refused.json()["code"]) == (403, "CrossSite")
            assert "access-control-allow-origin" not in refused.headers


async def test_pages_of_the_gateway_itself_are_answered(begun: str) -> None:
    """Rule: the dashboard is a page of the gateway, behind a proxy that ends TLS too."""
    async with AdminWorld.opened(begun, "") as world:
        for origin in ("http://gateway.test", "https://gateway.test", "http://GATEWAY.test"):
            sent = {"Authorization": f"Bearer {TOKEN}", "Origin": origin, "Sec_Fetch_Site": "same-origin"}
            assert (await answer(world.app, "GET", "/admin/tenants", **sent)).status_code == 200


async def test_two_tokens_in_one_request_are_none(begun: str) -> None:
    """Rule: a proxy and the gateway might each read another one."""
    async with AdminWorld.opened(begun, "") as world:
        headers = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer other")]
        transport = httpx.ASGITransport(world.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway.test") as http:
            refused = await http.get("/admin/tenants", headers=headers)
        assert refused.status_code == 400


async def test_a_body_has_an_end(begun: str) -> None:
    """Rule: more than a mebibyte is refused, by the announced length and by the bytes; a stranger's is not read."""
    async with AdminWorld.opened(begun, "") as world:

        async def endless() -> object:
            while True:
                yield b"x" * 65536

        for content in (b"x" * (LARGEST_BODY + 1), endless()):
            refused = await world.http.post("/admin/tenants", content=content)
            assert (refused.status_code, refused.json()["code"]) == (413, "TooLarge")
        stranger = await world.http.post("/admin/tenants", content=endless(), headers={"Authorization": "Bearer wrong"})
        assert stranger.status_code == 401


async def test_what_is_not_there_is_said_to_be_so(begun: str) -> None:
    """Rule: problem documents for unknown addresses and methods too, with the methods that there are."""
    async with AdminWorld.opened(begun, "") as world:
        assert (await world.ask("GET", "/nothing", 404))["code"] == "NotFound"
        assert (await world.ask("GET", "/tenants/two%0Alines", 404))["code"] == "NotFound"
        assert (await world.ask("PUT", "/tenants", 405))["code"] == "MethodNotAllowed"
        refused = await world.http.request("PUT", "/admin/tenants")
        assert refused.headers["allow"] == "GET, POST"
        refused = await world.http.request(
            "POST", "/admin/tenants", content=b"{", headers={"Content-Type": "application/json"}
        )
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidRequest")


async def test_answers_are_kept_by_nobody(begun: str) -> None:
    """Rule: an answer with a secret has ``no-store``, and the request id of its audit line."""
    async with AdminWorld.opened(begun, "") as world:
        made = await world.http.post("/admin/credentials", json={})
        assert made.headers["cache-control"] == "no-store"
        entry = (await world.ask("GET", "/audit", 200))["items"][0]
        assert made.headers["x-larder-request-id"] == entry["request_id"]
        assert made.headers["location"] == f"/-/admin/credentials/{made.json()['access_key_id']}"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('token = "same"\nread_token = "same"', "must differ"),
        ('token = "two words"', "without spaces"),
        ('token = "größer"', "ASCII"),
        ('read_token = "tab\\t"', "control character"),
    ],
)
def test_tokens_that_cannot_work_are_refused(tmp_path: Path, line: str, word: str) -> None:
    """Rule: unusable tokens are refused at the start with the setting's name."""
    path = tmp_path / "larder.toml"
    path.write_text(f'[[origins]]\nendpoint = "http://127.0.0.1:1"\n[admin]\n{line}\n')
    with pytest.raises(ConfigError, match="admin") as refused:
        load_settings(path)
    assert word in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ('url = "postgresql+asyncpg://larder:tell-this@db/larder"', "database.encryption_key: is required"),
        ('url = "postgresql+psycopg://larder:tell-this@db/larder"', "postgresql+asyncpg"),
        ('url = "mysql://larder:tell-this@db/larder"', "postgresql+asyncpg"),
        ('url = "sqlite://"', "must name a file"),
        ('url = "catalog.db"', "must look like"),
        ('encryption_key = "tell-this"', "32 bytes"),
    ],
)
def test_a_database_that_cannot_work_is_refused(tmp_path: Path, lines: str, word: str) -> None:
    """Rule: an unusable database is refused at the start with the setting's name, without the password."""
    path = tmp_path / "larder.toml"
    path.write_text(f'[[origins]]\nendpoint = "http://127.0.0.1:1"\n[database]\n{lines}\n')
    with pytest.raises(ConfigError, match="database") as refused:
        load_settings(path)
    assert word in str(refused.value)
    assert "tell-this" not in str(refused.value)
