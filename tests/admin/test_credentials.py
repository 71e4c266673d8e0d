"""Access keys: made, listed, changed, rotated, revoked; with what requests signed by them are answered then."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.admin.catalog.merging import View
from gateway.admin.catalog.records import CredentialRecord
from gateway.admin.configuration.credentials import CREDENTIALS
from gateway.base.config import Credential, load_settings
from gateway.base.config_base import TenantLimit
from gateway.edge.documents import ResponseModel
from gateway.model.errors import ConfigError
from tests.admin.admin_world import AdminWorld, settings

OF_FILE = Credential(access_key_id="filed/key", secret_access_key="the secret of the file", tenant="old")
GRACE = 300.0
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def world(begun: str) -> AsyncIterator[AdminWorld]:
    """The admin application over it."""
    async with AdminWorld.opened(begun, "") as opened:
        yield opened


async def test_a_key_is_in_force_as_soon_as_it_is_made(admin: AdminWorld) -> None:
    """Rule: the gateway that answers knows the key already; the secret is in the answer, and made well."""
    made = await admin.create()
    assert len(made["access_key_id"]) == 20
    assert len(made["secret_access_key"]) >= 40
    assert admin.refusal(made["access_key_id"], made["secret_access_key"]) == ""
    assert admin.refusal(made["access_key_id"], "another secret") == "SignatureDoesNotMatch"


async def test_a_secret_is_told_once(admin: AdminWorld) -> None:
    """Rule: neither lists, nor the credential itself, nor the audit log have it, also after a change."""
    made = await admin.create(access_key_id="vision", origin_access_key_id="OK", origin_secret_access_key="at-origin")
    await admin.ask("PATCH", "/credentials/vision", 200, {"origin_secret_access_key": "at-origin-2"})
    rotated = await admin.ask("POST", "/credentials/vision/rotate", 200, {})
    told = [await admin.ask("GET", path, 200) for path in ("/credentials", "/credentials/vision", "/audit")]
    text = json.dumps(told)
    assert made["secret_access_key"] not in text
    assert rotated["secret_access_key"] not in text
    assert "at-origin" not in text


async def test_both_secrets_are_valid_until_the_grace_ends(admin: AdminWorld) -> None:
    """Rule: in every way of signing, and to the second; clients can be given the new secret one by one."""
    old = (await admin.create(access_key_id="vision"))["secret_access_key"]
    rotated = await admin.ask("POST", "/credentials/vision/rotate", 200, {"grace": GRACE})
    new = rotated["secret_access_key"]
    for way in ("header", "presigned", "presigned_v2"):
        assert admin.refusal("vision", old, way) == ""
        assert admin.refusal("vision", new, way) == ""
    admin.clock.at += GRACE - 1
    assert admin.refusal("vision", old) == ""
    admin.clock.at += 1
    for way in ("header", "presigned", "presigned_v2"):
        assert admin.refusal("vision", old, way) == "SignatureDoesNotMatch"
        assert admin.refusal("vision", new, way) == ""


async def test_without_grace_the_old_secret_ends_at_once(admin: AdminWorld) -> None:
    """Rule: a leaked secret is rotated without grace; after two rotations the first secret is invalid."""
    old = (await admin.create(access_key_id="vision"))["secret_access_key"]
    middle = (await admin.ask("POST", "/credentials/vision/rotate", 200, {"grace": GRACE}))["secret_access_key"]
    new = (await admin.ask("POST", "/credentials/vision/rotate", 200, {}))["secret_access_key"]
    assert [admin.refusal("vision", secret) for secret in (old, middle, new)] == [
        "SignatureDoesNotMatch",
        "SignatureDoesNotMatch",
        "",
    ]


async def test_a_revoked_key_stays_revoked(admin: AdminWorld) -> None:
    """Rule: a revoked key stays revoked, and a second revocation changes nothing."""
    secret = (await admin.create(access_key_id="vision", secret_access_key="a chosen secret of mine"))[
        "secret_access_key"
    ]
    first = await admin.ask("POST", "/credentials/vision/revoke", 200)
    assert first["revoked"]
    assert first["problem"] == "it is revoked"
    assert admin.refusal("vision", secret) == "InvalidAccessKeyId"
    assert await admin.ask("POST", "/credentials/vision/revoke", 200) == first
    await admin.ask("PATCH", "/credentials/vision", 200, {"description": "why not"})
    await admin.ask("POST", "/credentials/vision/rotate", 409, {})
    await admin.ask("DELETE", "/credentials/vision", 204)
    await admin.ask("GET", "/credentials/vision", 404)
    refused = await admin.ask("POST", "/credentials", 409, {"access_key_id": "vision"})
    assert "revoked" in refused["detail"]
    assert admin.refusal("vision", secret) == "InvalidAccessKeyId"


async def test_a_key_of_the_file_can_be_revoked_and_not_edited(begun: str) -> None:
    """Rule: a key of the file is listed with its source under any name, and stays revoked when the file is read again."""
    async with AdminWorld.opened(begun, "", settings(OF_FILE)) as world:
        listed = await world.ask("GET", "/credentials", 200)
        assert [(item["access_key_id"], item["source"]) for item in listed["items"]] == [("filed/key", "file")]
        assert world.authenticator.find("filed/key") is not None
        await world.ask("POST", "/tenants", 409, {"name": "old"})
        await world.ask("POST", "/credentials/filed%2Fkey/revoke", 200)
        assert (await world.ask("GET", "/credentials/filed%2Fkey", 200))["revoked"]
        assert world.authenticator.find("filed/key") is None
        world.live.file = settings(OF_FILE)
        await world.live._apply()
        assert world.authenticator.find("filed/key") is None


async def test_the_file_counts_before_the_catalog(begun: str) -> None:
    """Rule: of a key in both, the file's is in force, and the catalog's is listed with the reason why it is not."""
    async with AdminWorld.opened(begun, "") as world:
        made = await world.create(access_key_id="both")
        of_file = Credential(access_key_id="both", secret_access_key="the secret of the file")
        world.live.file = settings(of_file)
        await world.live._apply()
        assert world.refusal("both", made["secret_access_key"]) == "SignatureDoesNotMatch"
        assert world.refusal("both", of_file.secret_access_key) == ""
        assert (await world.ask("GET", "/credentials/both", 200))["source"] == "file"
        await world.ask("PATCH", "/credentials/both", 200, {"read_only": True})
        conflict = await world.ask("POST", "/credentials", 409, {"access_key_id": "both"})
        assert "already" in conflict["detail"]


async def test_edits_at_the_same_time_do_not_overwrite_one_another(admin: AdminWorld) -> None:
    """Rule: an edit of an older document gets 412, and the present one stays."""
    read = await admin.create(access_key_id="vision")
    first = await admin.ask("PATCH", "/credentials/vision", 200, {"description": "first"}, If_Match=read["etag"])
    refused = await admin.ask("PATCH", "/credentials/vision", 412, {"description": "second"}, If_Match=read["etag"])
    assert refused["code"] == "PreconditionFailed"
    await admin.ask("DELETE", "/credentials/vision", 412, If_Match=read["etag"])
    await admin.ask("POST", "/credentials/vision/rotate", 412, {}, If_Match=f"W/{first['etag']}")
    assert (await admin.ask("GET", "/credentials/vision", 200))["description"] == "first"
    await admin.ask("PATCH", "/credentials/vision", 200, {"description": "third"}, If_Match=f'"0", {first["etag"]}')
    await admin.ask("PATCH", "/credentials/vision", 200, {"description": "fourth"}, If_Match="*")


async def test_a_request_sent_again_makes_no_second_key(admin: AdminWorld) -> None:
    """Rule: with an Idempotency-Key, the answer is the same for a day, secret included; then it is another request."""
    first = await admin.ask("POST", "/credentials", 201, {}, Idempotency_Key="a")
    assert await admin.ask("POST", "/credentials", 201, {}, Idempotency_Key="a") == first
    await admin.ask("POST", "/credentials", 409, {"read_only": True}, Idempotency_Key="a")
    assert len((await admin.ask("GET", "/credentials", 200))["items"]) == 1
    assert len((await admin.ask("GET", "/audit", 200))["items"]) == 1
    admin.clock.at += 24 * 3600 + 1
    assert await admin.ask("POST", "/credentials", 201, {}, Idempotency_Key="a") != first


async def test_what_a_key_may_do_can_be_changed(admin: AdminWorld) -> None:
    """Rule: given fields change at once, and omitted ones stay."""
    made = await admin.create(access_key_id="vision", allow=["bucket/**"], read_only=True)
    changed = await admin.ask("PATCH", "/credentials/vision", 200, {"allow": ["other/**"]})
    assert (changed["allow"], changed["read_only"]) == (["other/**"], True)
    account = admin.authenticator.find("vision")
    assert account is not None
    assert account.principal.allow == ("other/**",)
    assert account.principal.read_only
    assert admin.refusal("vision", made["secret_access_key"]) == ""
    await admin.ask("PATCH", "/credentials/vision", 200, {"expires": "2020-01-01T00:00:00Z"})
    assert admin.refusal("vision", made["secret_access_key"]) == "ExpiredToken"


async def test_a_tenant_that_is_not_enabled_has_no_valid_key(admin: AdminWorld) -> None:
    """Rule: all its keys are refused at once, and accepted again when it is enabled."""
    await admin.ask("POST", "/tenants", 201, {"name": "team"})
    secret = (await admin.create(access_key_id="vision", tenant="team"))["secret_access_key"]
    await admin.ask("PATCH", "/tenants/team", 200, {"enabled": False})
    assert admin.refusal("vision", secret) == "InvalidAccessKeyId"
    assert (await admin.ask("GET", "/credentials/vision", 200))["problem"] == "its tenant is not enabled"
    await admin.ask("PATCH", "/tenants/team", 200, {"enabled": True})
    assert admin.refusal("vision", secret) == ""


async def test_what_is_named_has_to_exist(admin: AdminWorld) -> None:
    """Rule: an unknown tenant or origin, which may be a misspelling, is refused with a remedy."""
    for body, word in (
        ({"tenant": "nobody"}, "larder-gateway tenants create"),
        ({"origin": "nowhere"}, "known: default"),
    ):
        refused = await admin.ask("POST", "/credentials", 400, body)
        assert word in refused["detail"]
        assert next(iter(body)) in refused["detail"]


async def test_what_is_in_use_is_not_removed(admin: AdminWorld) -> None:
    """Rule: a tenant with keys, and an origin named by keys, can be removed only after those keys."""
    await admin.ask("POST", "/tenants", 201, {"name": "team"})
    await admin.ask("POST", "/origins", 201, {"name": "archive", "endpoint": "http://127.0.0.1:2"})
    await admin.create(access_key_id="vision", tenant="team", origin="archive")
    assert [origin.name for origin in admin.origins.origins] == ["default", "archive"]
    await admin.ask("DELETE", "/tenants/team", 409)
    await admin.ask("DELETE", "/origins/archive", 409)
    await admin.ask("DELETE", "/credentials/vision", 204)
    await admin.ask("DELETE", "/tenants/team", 204)
    await admin.ask("DELETE", "/origins/archive", 204)
    assert [origin.name for origin in admin.origins.origins] == ["default"]


STRANGE = [
    "<script>alert(1)</script>",
    "nul\0nul",
    "two\nlines",
    "emoji 😀",
    "x" * 10_000,
    "",
    "..",
    "a/b",
    "a b",
    "-x",
    "%2e",
]


@pytest.mark.parametrize(
    ("path", "field", "more"),
    [
        ("/tenants", "name", {}),
        ("/credentials", "access_key_id", {}),
        ("/origins", "name", {"endpoint": "http://127.0.0.1:2"}),
    ],
)
async def test_names_that_are_no_names_are_refused(
    world: AdminWorld, path: str, field: str, more: dict[str, str]
) -> None:
    """Rule: an invalid name is refused with the field's name, before anything is changed."""
    for name in STRANGE:
        refused = await world.ask("POST", path, 400, {field: name, **more})
        assert [error["field"] for error in refused["errors"]] == [field], refused
    assert (await world.ask("GET", "/audit", 200))["items"] == []


async def test_what_people_write_is_kept_as_text(admin: AdminWorld) -> None:
    """Rule: a description may have any characters except control characters, and is returned unchanged."""
    for text in (
        "<img src=x onerror=alert(1)>",
        "emoji 😀 and עברית",
        '"quoted" \\ and; DROP TABLE tenants',
        "x" * 1000,
    ):
        made = await admin.create(description=text)
        assert (await admin.ask("GET", f"/credentials/{made['access_key_id']}", 200))["description"] == text
    for text in ("nul\0nul", "two\nlines", "x" * 1001):
        await admin.ask("POST", "/credentials", 400, {"description": text})
    half = await admin.http.post("/admin/credentials", content=b'{"description": "\\ud83d"}', headers=JSON)
    assert (half.status_code, half.json()["errors"][0]["field"]) == (400, "description")


WRONG: list[tuple[object, str]] = [
    ({"colour": "red"}, "The field colour is unknown"),
    ({"read_only": "perhaps"}, "read_only"),
    ({"allow": "bucket/**"}, "allow"),
    ({"allow": [""]}, "allow"),
    ({"expires": "tomorrow"}, "expires"),
    (
        {"expires": "2020-01-01T00:00:00Z"},
        "The field expires must be in the future; 2020-01-01T00:00:00Z is in the past",
    ),
    ({"expires": "2020-01-01"}, "The field expires must be in the future; 2020-01-01 is in the past"),
    ({"secret_access_key": "short"}, "secret_access_key"),
    ({"origin_access_key_id": "alone"}, "origin_access_key_id and origin_secret_access_key go together"),
    ([], "body"),
    ("text", "body"),
    (None, "body"),
]


async def test_a_wrong_field_is_named(world: AdminWorld) -> None:
    """Rule: the answer names the wrong field, and nothing is created."""
    for body, field in WRONG:
        refused = await world.ask("POST", "/credentials", 400, body)
        assert field in refused["detail"]
    for content, kind, said in (
        (
            b'{"access_key_id": "a", "access_key_id": "b"}',
            "application/json",
            "The field access_key_id is given more than once",
        ),
        (b'{"access_key_id": "a"}', "text/plain", "The Content-Type is 'text/plain'; send application/json."),
        (b'{"access_key_id": "a"}', "", "The Content-Type is missing"),
        (b"{", "application/json", "The body is not JSON from character 1 on"),
    ):
        headers = {"Content-Type": kind} if kind else {}
        answer = await world.http.post("/admin/credentials", content=content, headers=headers)
        assert (answer.status_code, answer.json()["detail"].startswith(said)) == (400, True), answer.text
    assert (await world.ask("GET", "/credentials", 200))["items"] == []


async def test_a_tenant_of_the_catalog_has_the_limits_that_are_listed(
    begun: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: the file's limits apply to tenants that the catalog does not have, and the log says once that others do not."""
    filed = tuple(TenantLimit(tenant=name, requests_per_second=5, bytes_per_second=7) for name in ("filed", "vision"))
    file = settings(OF_FILE).model_copy(update={"limits": filed})
    async with AdminWorld.opened(begun, "", file) as world:
        await world.ask("POST", "/tenants", 201, {"name": "vision", "bytes_per_second": 9})
        await world.ask("PATCH", "/tenants/vision", 200, {"bytes_per_second": 0})
        shown = await world.ask("GET", "/tenants/vision", 200)
        limits = {one.tenant: (one.requests_per_second, one.bytes_per_second) for one in world.live.effective.limits}
    assert limits == {"filed": (5, 7), "vision": (0, 0)}
    assert (shown["requests_per_second"], shown["bytes_per_second"]) == limits["vision"]
    assert [said for said in caplog.messages if "do not apply" in said] == [
        "the file's limits of vision do not apply: the catalog has this tenant"
    ]


@pytest.mark.parametrize("field", ["origin_secret_access_key", "origin_session_token", "secret_access_key"])
async def test_a_secret_that_nothing_can_encode_is_refused(world: AdminWorld, field: str) -> None:
    """Rule: a secret with a lone surrogate is refused by the field's name; it was an internal error."""
    content = json.dumps({"access_key_id": "a", "origin_access_key_id": "b", field: "\ud800" * 16})
    answer = await world.http.post("/admin/credentials", content=content, headers=JSON)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)


async def test_lists_come_in_pages(admin: AdminWorld) -> None:
    """Rule: each item is on one page, in order; an item added behind a page is on a later one."""
    for name in ("d", "b", "a"):
        await admin.create(access_key_id=name)
    first = await admin.ask("GET", "/credentials?limit=2", 200)
    await admin.create(access_key_id="c")
    second = await admin.ask("GET", f"/credentials?limit=2&cursor={first['next']}", 200)
    names = [item["access_key_id"] for page in (first, second) for item in page["items"]]
    assert names == ["a", "b", "c", "d"]
    assert second["next"] is None
    for query in (
        "limit=0",
        "limit=1001",
        "limit=x",
        "cursor=bad",
        "cursor=MTc",
        "cursor=%00",
        "limits=5",
        "limit=1&limit=2",
    ):
        await admin.ask("GET", f"/credentials?{query}", 400)


async def test_a_page_describes_its_own_records_only(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a page does not describe the records of other pages; with ten thousand keys that held the event loop for 0.7 s."""
    for name in ("a", "b", "c"):
        await world.create(access_key_id=name)
    described: list[str] = []
    describe = CREDENTIALS.describe

    def noted(record: CredentialRecord, view: View) -> ResponseModel:
        described.append(record.id)
        return describe(record, view)

    monkeypatch.setattr(CREDENTIALS, "describe", noted)
    await world.ask("GET", "/credentials?limit=1", 200)
    assert described == ["a"]


async def test_the_audit_log_tells_who_did_what(admin: AdminWorld) -> None:
    """Rule: the last change first, with the fields before and after, and the address; filters by action and by target."""
    await admin.create(access_key_id="vision")
    await admin.ask("PATCH", "/credentials/vision", 200, {"read_only": True})
    await admin.ask("POST", "/credentials/vision/revoke", 200)
    page = await admin.ask("GET", "/audit?limit=2", 200)
    rest = await admin.ask("GET", f"/audit?limit=2&cursor={page['next']}", 200)
    entries = page["items"] + rest["items"]
    assert [entry["action"] for entry in entries] == ["credentials.revoke", "credentials.change", "credentials.create"]
    assert {(entry["actor"], entry["address"], entry["target"]) for entry in entries} == {
        ("admin", "192.0.2.7", "vision")
    }
    assert (entries[1]["before"]["read_only"], entries[1]["after"]["read_only"]) == (False, True)
    assert entries[2]["before"] is None
    assert len({entry["request_id"] for entry in entries}) == 3
    assert len((await admin.ask("GET", "/audit?action=credentials.revoke", 200))["items"]) == 1
    assert (await admin.ask("GET", "/audit?target=nobody", 200))["items"] == []
    for query in ("cursor=LTE", "cursor=IngI", "target=%00", f"cursor={'M' * 40}"):
        await admin.ask("GET", f"/audit?{query}", 400)


async def test_the_audit_log_does_not_grow_for_ever(admin: AdminWorld) -> None:
    """Rule: the newest entries are kept, so many as say ``Changes.kept``, and no others."""
    admin.catalog.changes.kept = 2
    for name in ("a", "b", "c"):
        await admin.create(access_key_id=name)
    assert [entry["target"] for entry in (await admin.ask("GET", "/audit", 200))["items"]] == ["c", "b"]


def test_a_previous_secret_needs_its_end(tmp_path: Path) -> None:
    """Rule: a previous secret needs an end in a file too; it would stay valid by oversight otherwise."""
    path = tmp_path / "larder.toml"
    path.write_text(
        '[[origins]]\nendpoint = "http://127.0.0.1:1"\n'
        '[[credentials]]\naccess_key_id = "a"\nsecret_access_key = "s"\nprevious_secret_access_key = "p"\n'
    )
    with pytest.raises(ConfigError, match="previous_secret_access_key and previous_expires go together"):
        load_settings(path)


async def test_a_rotation_writes_nothing_that_cannot_be_read(admin: AdminWorld) -> None:
    """Rule: a secret that a configuration could not have is refused; gateways could not read the catalog with it."""
    await admin.create(access_key_id="vision")
    other = await admin.create(access_key_id="other")
    for secret in ("y\0" * 20, "line\n" * 20, "\x7f" * 20):
        refused = await admin.ask("POST", "/credentials/vision/rotate", 400, {"secret_access_key": secret})
        assert refused["detail"].startswith("The field secret_access_key ")
    await admin.ask("POST", "/credentials/other/revoke", 200)
    assert admin.refusal("other", other["secret_access_key"]) == "InvalidAccessKeyId"
