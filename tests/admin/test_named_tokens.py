"""Named admin tokens: what each role may do, at every endpoint; how they are made, changed, revoked and audited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.admin.catalog.roles import TokenRole
from gateway.admin.catalog.schema import tokens
from gateway.admin.catalog.withdrawals import TOKEN as OF_TOKEN
from gateway.admin.catalog.withdrawals import Withdrawal
from gateway.admin.http.roles import role_needed
from tests.admin.admin_world import AdminWorld
from tests.admin.test_tokens import answer, endpoints

OPERATING = {
    ("DELETE", "/admin/jobs/{tenant}/{job}"),
    ("DELETE", "/admin/nodes/{node}"),
    ("DELETE", "/admin/problems/{name}/mute"),
    ("DELETE", "/admin/profiles/{profile}"),
    ("POST", "/admin/nodes/{node}/drain"),
    ("POST", "/admin/nodes/{node}/undrain"),
    ("POST", "/admin/profiles"),
    ("POST", "/admin/profiles/{profile}/stop"),
    ("POST", "/admin/purge"),
    ("POST", "/admin/verifications"),
    ("POST", "/admin/warmups"),
    ("POST", "/admin/warmups/{warmup}/cancel"),
    ("POST", "/admin/warmups/{warmup}/resume"),
    ("PUT", "/admin/datasets/{dataset}/override"),
    ("PUT", "/admin/pipelines/{tenant}/{job}/override"),
    ("PUT", "/admin/problems/{name}/mute"),
    ("PUT", "/admin/results/{pool}/override"),
    ("PUT", "/admin/streams/{name}/override"),
}
"""Changes that an operator may make."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A catalog in a file."""
    return f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}"


async def made(world: AdminWorld, name: str, **fields: Any) -> str:
    """A new token."""
    token: str = (await world.ask("POST", "/tokens", 201, {"name": name, **fields}))["token"]
    return token


async def code(world: AdminWorld, token: str, method: str = "GET", path: str = "/admin/tenants") -> str:
    """The code of the refusal of a request with a token; empty if it is not refused for its token."""
    reply = await answer(world.app, method, path, Authorization=f"Bearer {token}")
    return str(reply.json()["code"]) if reply.status_code in (401, 403) else ""


def test_every_endpoint_needs_a_role() -> None:
    """Rule: reads need a viewer; of the changes, these need an operator, and all others an admin."""
    needed = {(method, path): role_needed(method, path) for method, path in endpoints()}
    assert {each for each, role in needed.items() if role is TokenRole.OPERATOR} == OPERATING
    reads = {each for each in needed if each[0] == "GET" or each == ("POST", "/admin/rules/check")}
    assert {each for each, role in needed.items() if role is TokenRole.VIEWER} == reads


async def test_a_role_is_checked_at_every_endpoint(url: str) -> None:
    """Rule: a token is refused exactly where its role does not suffice; a refused request changes nothing."""
    async with AdminWorld.opened(url, "") as world:
        viewer = await made(world, "looks")
        operator = await made(world, "runs", role="operator")
        admin = await made(world, "rules", role="admin")
        for method, path in endpoints():
            reads = method == "GET" or path.endswith("/rules/check")
            operates = reads or (method, path) in OPERATING
            assert await code(world, viewer, method, path) == ("" if reads else "ReadOnlyToken"), (method, path)
            assert await code(world, operator, method, path) == ("" if operates else "RoleRequired"), (method, path)
            assert await code(world, admin, method, path) == "", (method, path)


async def test_a_token_is_shown_once(url: str) -> None:
    """Rule: the answer that creates it has it; lists, the audit log and the database do not, sealed or not."""
    async with AdminWorld.opened(url, "") as world:
        token = await made(world, "ci", description="deployments")
        assert await code(world, token) == ""
        assert (await world.ask("GET", "/tokens", 200))["items"][0].keys() == {
            "name", "description", "role", "expires", "created_at", "etag",
        }  # fmt: skip
        assert token not in str(await world.ask("GET", "/audit", 200))
        async with world.catalog.database.reading() as connection:
            row = (await connection.execute(select(tokens))).mappings().one()
        opened = world.catalog.vault.open("tokens/ci", row["secrets"])
        assert token not in f"{dict(row)} {opened}"


async def test_the_audit_log_names_the_token(url: str) -> None:
    """Rule: a change is the named token's."""
    async with AdminWorld.opened(url, "") as world:
        token = await made(world, "ci", role="admin")
        await world.ask("POST", "/tenants", 201, {"name": "vision"}, Authorization=f"Bearer {token}")
        entries = (await world.ask("GET", "/audit", 200))["items"]
        assert [(entry["actor"], entry["action"], entry["target"]) for entry in entries] == [
            ("ci", "tenants.create", "vision"),
            ("admin", "tokens.create", "ci"),
        ]


async def test_a_revoked_token_is_refused(url: str) -> None:
    """Rule: a revoked token is refused at once, also after a new token got its name."""
    async with AdminWorld.opened(url, "") as world:
        token = await made(world, "ci")
        await world.ask("DELETE", "/tokens/ci", 204)
        assert await code(world, token) == "Unauthorized"
        later = await made(world, "ci")
        assert await code(world, token) == "Unauthorized"
        assert await code(world, later) == ""


async def test_a_token_ends_when_it_expires(url: str) -> None:
    """Rule: a token is accepted until its expiry and refused afterwards; an expired one cannot be created."""
    async with AdminWorld.opened(url, "") as world:
        refused = await world.ask("POST", "/tokens", 400, {"name": "late", "expires": "2001-01-01T00:00:00Z"})
        assert refused["detail"].startswith("The field expires must ")
        refused = await world.ask("POST", "/tokens", 400, {"name": "late", "expires": "soon"})
        assert refused["detail"].startswith("The field expires must ")
        token = await made(world, "ci", expires="2090-01-01T00:00:00Z")
        assert await code(world, token) == ""
        world.clock.at = 3_800_000_000.0
        assert await code(world, token) == "Unauthorized"


async def test_a_role_is_changed(url: str) -> None:
    """Rule: a changed role is effective at once, and the audit log has the previous one."""
    async with AdminWorld.opened(url, "") as world:
        token = await made(world, "ci", role="admin")
        await world.ask("PATCH", "/tokens/ci", 200, {"role": "viewer"})
        assert await code(world, token, "POST", "/admin/tenants") == "ReadOnlyToken"
        entry = (await world.ask("GET", "/audit", 200))["items"][0]
        assert (entry["before"]["role"], entry["after"]["role"]) == ("admin", "viewer")


async def test_a_role_is_one_that_exists(url: str) -> None:
    """Rule: the refusal names the field and the roles."""
    async with AdminWorld.opened(url, "") as world:
        refused = await world.ask("POST", "/tokens", 400, {"name": "ci", "role": "root"})
        assert refused["detail"] == "The field role must be viewer, operator or admin."


@pytest.mark.parametrize("name", ["admin", "read"])
async def test_the_names_of_the_configuration_are_taken(url: str, name: str) -> None:
    """Rule: no named token can be mistaken for one of the configuration in the audit log."""
    async with AdminWorld.opened(url, "") as world:
        refused = await world.ask("POST", "/tokens", 409, {"name": name})
        assert refused["errors"][0]["field"] == "name"


async def test_a_withdrawal_ends_a_token_without_the_catalog(url: str) -> None:
    """Rule: a gateway that learns of a revocation by Redis refuses the token before it reads the catalog."""
    async with AdminWorld.opened(url, "") as world:
        token = await made(world, "ci")
        version = (await world.catalog.latest()).version
        await world.catalog.withdraw([Withdrawal(OF_TOKEN, "ci", version + 1, 0.0)])
        assert await code(world, token) == "Unauthorized"


async def test_revoking_is_announced(url: str) -> None:
    """Rule: changes that take rights away are announced: a revocation, a lower role; a description is not."""
    async with AdminWorld.opened(url, "") as world:
        await made(world, "ci", role="operator")
        said: list[str] = []

        async def hear(withdrawn: Any) -> None:
            said.extend(each.name for each in withdrawn)

        world.catalog.on_change(hear)
        await world.ask("PATCH", "/tokens/ci", 200, {"description": "deployments"})
        assert said == []
        await world.ask("PATCH", "/tokens/ci", 200, {"role": "viewer"})
        await world.ask("DELETE", "/tokens/ci", 204)
        assert said == ["ci", "ci"]
