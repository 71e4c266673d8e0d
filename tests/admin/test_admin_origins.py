"""Origins and tenants that operators set: their documents, and the settings of the file that they cannot change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gateway.base.config import Credential
from tests.admin.admin_world import AdminWorld, settings

OF_FILE = Credential(access_key_id="filed", secret_access_key="the secret of the file", tenant="old")
ARCHIVE = {
    "name": "archive",
    "endpoint": "http://127.0.0.1:2",
    "access_key_id": "AK",
    "secret_access_key": "tell-nobody",
}


@pytest.fixture
async def world(begun: str) -> AsyncIterator[AdminWorld]:
    """A gateway whose file has an origin and a tenant."""
    async with AdminWorld.opened(begun, "", settings(OF_FILE)) as opened:
        yield opened


async def test_an_origins_secret_is_told_nobody(world: AdminWorld) -> None:
    """Rule: an origin's secret is in no answer, no list and no audit line; the audit log only records that it changed."""
    made = await world.ask("POST", "/origins", 201, ARCHIVE)
    changed = await world.ask(
        "PATCH", "/origins/archive", 200, {"secret_access_key": "tell-nobody-2"}, If_Match=made["etag"]
    )
    told = [made, changed, await world.ask("GET", "/origins", 200), await world.ask("GET", "/audit", 200)]
    assert "tell-nobody" not in json.dumps(told)
    assert told[-1]["items"][0]["after"]["secrets_changed"] is True
    assert world.origins.origins[1].secret_access_key == "tell-nobody-2"


async def test_an_origin_is_changed_by_who_has_read_it(world: AdminWorld) -> None:
    """Rule: given fields change, omitted ones stay; an edit of an older document is refused."""
    made = await world.ask("POST", "/origins", 201, ARCHIVE)
    changed = await world.ask("PATCH", "/origins/archive", 200, {"read_timeout": 5}, If_Match=made["etag"])
    assert (changed["read_timeout"], changed["endpoint"]) == (5.0, ARCHIVE["endpoint"])
    await world.ask("PATCH", "/origins/archive", 412, {"read_timeout": 9}, If_Match=made["etag"])
    await world.ask("DELETE", "/origins/archive", 412, If_Match=made["etag"])
    assert (await world.ask("GET", "/origins/archive", 200))["etag"] == changed["etag"]
    assert world.origins.origins[1].read_timeout == 5.0


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"endpoint": "ftp://there"}, "The field endpoint must look like"),
        ({"endpoint": "http://there/path"}, "The field endpoint must look like"),
        ({"access_key_id": "AK"}, "go together"),
        ({"read_timeout": -1}, "read_timeout"),
        ({"read_timeout": "5"}, "read_timeout"),
        ({"max_connections": 0}, "max_connections"),
        ({"region": "two\nlines"}, "The field region must not contain a control character"),
        ({"region": "überall"}, "The field region must be ASCII"),
        ({"access_key_id": "ключ", "secret_access_key": "s"}, "The field access_key_id must be ASCII"),
        (
            {"access_key_id": "AK", "secret_access_key": "s", "session_token": "ü"},
            "The field session_token must be ASCII",
        ),
        (
            {"access_key_id": "AK", "secret_access_key": "a\nb"},
            "secret_access_key must not contain a control character",
        ),
    ],
)
async def test_an_origin_that_cannot_work_is_refused(world: AdminWorld, body: dict[str, object], word: str) -> None:
    """Rule: an invalid origin is refused with the field's name, and not created."""
    asked = {"name": "archive", "endpoint": "http://127.0.0.1:2", **body}
    assert word in (await world.ask("POST", "/origins", 400, asked))["detail"]
    await world.ask("GET", "/origins/archive", 404)


async def test_an_origin_returns_to_the_machines_keys(world: AdminWorld) -> None:
    """Rule: a new access key ends the session token of the one before, an empty one the secret too; the same key ends nothing."""
    keys = {"access_key_id": "AK", "secret_access_key": "s", "session_token": "t"}
    await world.ask("POST", "/origins", 201, {"name": "archive", "endpoint": "http://127.0.0.1:2", **keys})

    def held() -> tuple[str, str, str]:
        origin = world.origins.origins[1]
        return origin.access_key_id, origin.secret_access_key, origin.session_token

    await world.ask("PATCH", "/origins/archive", 200, {"access_key_id": "AK"})
    assert held() == ("AK", "s", "t")
    await world.ask("PATCH", "/origins/archive", 200, {"access_key_id": "BK", "secret_access_key": "u"})
    assert held() == ("BK", "u", "")
    await world.ask("PATCH", "/origins/archive", 200, {"access_key_id": ""})
    assert held() == ("", "", "")


async def test_what_is_in_the_file_is_edited_there(world: AdminWorld) -> None:
    """Rule: an origin of the file is listed with its source; to change, remove or duplicate it is refused with the reason."""
    for path, name, body in (
        ("/origins", "default", {"endpoint": "http://127.0.0.1:3"}),
        ("/tenants", "old", {"description": "mine"}),
    ):
        assert [(item["name"], item["source"]) for item in (await world.ask("GET", path, 200))["items"]] == [
            (name, "file")
        ]
        await world.ask("POST", path, 409, {"name": name, **body})
        for method, content in (("PATCH", body), ("DELETE", None)):
            refused = await world.ask(method, f"{path}/{name}", 409, content)
            assert "configuration file" in refused["detail"]


async def test_an_origin_that_the_file_has_meanwhile_is_the_files(world: AdminWorld) -> None:
    """Rule: the file's origin hides the catalog's, and the list says so; keys of a removed origin are out of force."""
    await world.ask("POST", "/origins", 201, ARCHIVE)
    secret = (await world.create(access_key_id="k", origin="archive"))["secret_access_key"]
    of_file = world.live.file.origins[0].model_copy(update={"name": "archive"})
    world.live.file = world.live.file.model_copy(update={"origins": (*world.live.file.origins, of_file)})
    await world.live._apply()
    listed = {item["name"]: item for item in (await world.ask("GET", "/origins", 200))["items"]}
    assert (listed["archive"]["source"], listed["archive"]["credentials"]) == ("file", 1)
    assert listed["archive"]["problem"]
    assert world.refusal("k", secret) == ""


async def test_a_key_whose_origin_left_the_file_is_out_of_force(world: AdminWorld) -> None:
    """Rule: a key whose origin left the file is refused, the list gives the reason, and all other keys keep working."""
    second = world.live.file.origins[0].model_copy(update={"name": "second"})
    before = world.live.file
    world.live.file = before.model_copy(update={"origins": (*before.origins, second)})
    secret = (await world.create(access_key_id="k", origin="second"))["secret_access_key"]
    assert world.refusal("k", secret) == ""
    world.live.file = before
    await world.live._apply()
    assert world.refusal("k", secret) == "InvalidAccessKeyId"
    assert "its origin 'second' no longer exists" in (await world.ask("GET", "/credentials/k", 200))["problem"]
    assert world.refusal("filed", OF_FILE.secret_access_key) == ""


async def test_forgetting_a_store_holds_no_revocation_up(world: AdminWorld) -> None:
    """Rule: objects of former endpoints are forgotten in the background, one endpoint after the other."""
    await world.ask("POST", "/origins", 201, ARCHIVE)
    secret = (await world.create(access_key_id="k"))["secret_access_key"]
    world.may_settle.clear()
    for port in (3, 4, 5):
        await world.ask("PATCH", "/origins/archive", 200, {"endpoint": f"http://127.0.0.1:{port}"})
    assert world.refusal("k", secret) == ""
    await world.ask("POST", "/credentials/k/revoke", 200)
    assert world.refusal("k", secret) == "InvalidAccessKeyId"
    world.may_settle.set()
    await asyncio.wait_for(world.live._settling.drain(), 60)
    assert [endpoints["archive"].rpartition(":")[2] for endpoints in world.settled][-1] == "5"
    assert len(world.settled) < 5
