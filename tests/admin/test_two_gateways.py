"""Two real gateways and one PostgreSQL: a change through one takes effect at both, through all failures."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rig.gateways import Running, Settings, cache_status, finish, start
from rig.processes import wait_until
from rig.proxy import Proxy
from rig.redis_server import RedisServer
from rig.world import Origin
from tests.admin.admin_world import KEY
from tests.admin.asked import TOKEN, ask, readiness, refusal
from tests.admin.postgres_server import PostgresServer

SOON = 60.0


def everywhere(gateways: list[Running], key: str, secret: str, code: str) -> None:
    """Wait until every gateway answers a read by this key so."""
    wait_until(
        lambda: all(refusal(running, key, secret) == code for running in gateways),
        SOON,
        f"{code or 'an answer'} for {key} at every gateway",
    )


_UNCACHED = (b"only there", "BYPASS")
_UNEVEN = """
    SELECT (SELECT count(*) FROM credentials WHERE access_key_id NOT IN (SELECT target FROM audit)),
           (SELECT count(*) FROM audit WHERE action = 'credentials.create'
               AND target NOT IN (SELECT access_key_id FROM credentials)),
           (SELECT CAST(value AS bigint) FROM meta WHERE name = 'version') - (SELECT count(*) FROM audit)
"""
"""Counts of credentials, audit lines and versions without their counterparts."""


class Pair:
    """Two gateways of one worker each, with their shared services; ``link`` is the second one's connection to PostgreSQL."""

    def __init__(self, home: Path, origin: Origin, redis: RedisServer, postgres: PostgresServer) -> None:
        self.redis = redis
        self.postgres = postgres
        self._home = home
        self.link = Proxy(postgres.port)
        self.link.__enter__()
        url = postgres.database()
        self.database = url.rpartition("/")[2]
        urls = (url, url.replace(f":{postgres.port}/", f":{self.link.port}/"))
        common = f'encryption_key = "{KEY}"\n[admin]\ntoken = "{TOKEN}"\n'
        self._settings = [
            Settings(
                origin.endpoint,
                home / f"cache-{number}",
                redis=redis.url,
                extra=f'[database]\nurl = "{url}"\n{common}',
            )
            for number, url in enumerate(urls)
        ]
        self.gateways = [start(settings, home / f"home-{number}") for number, settings in enumerate(self._settings)]

    def restart(self, number: int, *, unready: bool = False) -> Running:
        """Start one again that was stopped or killed; ``unready``: it will not be ready."""
        finish(self.gateways[number])
        self.gateways[number] = start(self._settings[number], self._home / f"home-{number}", unready=unready)
        return self.gateways[number]

    def close(self) -> None:
        """Stop both."""
        for running in self.gateways:
            finish(running)
        self.link.__exit__()

    def logs(self) -> str:
        """All that they have written."""
        return "".join(path.read_text() for path in self._home.glob("home-*/*.log"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two gateways for all stories; each story leaves everything running."""
    with ExitStack() as stack:
        origin = stack.enter_context(Origin())
        origin.s3.put("bucket", "key", b"content")
        redis, postgres = stack.enter_context(RedisServer()), stack.enter_context(PostgresServer())
        opened = Pair(tmp_path_factory.mktemp("pair"), origin, redis, postgres)
        stack.callback(opened.close)
        yield opened


def test_what_is_made_at_one_holds_at_the_other(pair: Pair) -> None:
    """Rule: creating, rotating and revoking a key at one gateway takes effect at both; its secret is in no log."""
    one, other = pair.gateways
    status, made = ask(one, "POST", "/credentials", {"access_key_id": "story-1"})
    assert status == 201
    everywhere(pair.gateways, "story-1", made["secret_access_key"], "")
    _, rotated = ask(other, "POST", "/credentials/story-1/rotate", {})
    everywhere(pair.gateways, "story-1", made["secret_access_key"], "SignatureDoesNotMatch")
    everywhere(pair.gateways, "story-1", rotated["secret_access_key"], "")
    assert ask(one, "POST", "/credentials/story-1/revoke")[0] == 200
    assert refusal(one, "story-1", rotated["secret_access_key"]) == "InvalidAccessKeyId"
    everywhere(pair.gateways, "story-1", rotated["secret_access_key"], "InvalidAccessKeyId")
    assert made["secret_access_key"] not in pair.logs()
    assert rotated["secret_access_key"] not in pair.logs()


def test_a_store_that_is_added_is_read_through_both(pair: Pair) -> None:
    """Rule: an origin, its key, and a rule for its objects, made at one gateway, hold at both without a restart."""
    with Origin() as second:
        second.s3.put("archive", "never/key", b"only there")
        keys = {"access_key_id": "origin-key-a", "secret_access_key": "origin-secret-a"}
        origin = {"name": "second", "endpoint": second.endpoint, **keys}
        assert ask(pair.gateways[0], "POST", "/origins", origin)[0] == 201
        secret = ask(pair.gateways[1], "POST", "/credentials", {"access_key_id": "story-5", "origin": "second"})
        rule = {"match": "archive/never/**", "cache": False}
        assert ask(pair.gateways[0], "PUT", "/rules", {"items": [rule]})[0] == 200
        wait_until(
            lambda: all(_read(running, secret[1]) == _UNCACHED for running in pair.gateways),
            SOON,
            "the rule everywhere",
        )


def _read(running: Running, credential: Any) -> tuple[bytes, str]:
    """Body and cache status of a read from the second store; on an error, its text."""
    client = running.client(credential["access_key_id"], credential["secret_access_key"])
    try:
        answer = client.get_object(Bucket="archive", Key="never/key")
    except ClientError as error:
        return b"", str(error)
    return answer["Body"].read(), cache_status(answer).partition(";")[0]


def test_a_lost_redis_makes_no_key_valid_again(pair: Pair) -> None:
    """Rule: a revocation needs no Redis, and neither its loss, nor a restart of everything, undoes it."""
    one, other = pair.gateways
    _, made = ask(one, "POST", "/credentials", {"access_key_id": "story-2"})
    secret = made["secret_access_key"]
    everywhere(pair.gateways, "story-2", secret, "")
    pair.redis.kill()
    assert ask(one, "POST", "/credentials/story-2/revoke")[0] == 200
    everywhere(pair.gateways, "story-2", secret, "InvalidAccessKeyId")
    pair.redis.start()
    pair.redis.flush()
    other.kill()
    pair.restart(1)
    assert refusal(pair.gateways[1], "story-2", secret) == "InvalidAccessKeyId"


def test_a_revocation_reaches_a_gateway_that_is_cut_off_from_the_catalog(pair: Pair) -> None:
    """Rule: withdrawals travel through Redis too, and end by the catalog only; no other key is affected."""
    one, other = pair.gateways
    assert ask(one, "POST", "/tenants", {"name": "story-6"})[0] == 201
    secrets = {}
    for name, tenant in (("story-6-gone", ""), ("story-6-kept", ""), ("story-6-off", "story-6")):
        key = {"access_key_id": name, "tenant": tenant}
        secrets[name] = ask(one, "POST", "/credentials", key)[1]["secret_access_key"]
        everywhere(pair.gateways, name, secrets[name], "")
    with pair.link.cut():
        wait_until(lambda: "catalog" in readiness(other)[1]["problems"], SOON, "the loss of the catalog")
        assert ask(one, "POST", "/credentials/story-6-gone/revoke")[0] == 200
        assert ask(one, "PATCH", "/tenants/story-6", {"enabled": False})[0] == 200
        for name in ("story-6-gone", "story-6-off"):
            everywhere(pair.gateways, name, secrets[name], "InvalidAccessKeyId")
        assert refusal(other, "story-6-kept", secrets["story-6-kept"]) == ""
        assert ask(other, "GET", "/credentials/story-6-gone")[1]["revoked"] is True
        assert "catalog" in readiness(other)[1]["problems"]
    assert ask(one, "PATCH", "/tenants/story-6", {"enabled": True})[0] == 200
    everywhere(pair.gateways, "story-6-off", secrets["story-6-off"], "")
    everywhere(pair.gateways, "story-6-gone", secrets["story-6-gone"], "InvalidAccessKeyId")


def test_a_key_of_the_file_is_revoked_at_both(pair: Pair) -> None:
    """Rule: also when the file is read again, with the key in it, and by a gateway that was started since."""
    key = {"access_key_id": "story-3", "secret_access_key": "the-secret-of-the-file"}
    table = "".join(f"{name} = {json.dumps(value)}\n" for name, value in key.items())
    for running in pair.gateways:
        running.config.write_text(running.config.read_text() + "\n[[credentials]]\n" + table)
    everywhere(pair.gateways, "story-3", key["secret_access_key"], "")
    assert ask(pair.gateways[0], "POST", "/credentials/story-3/revoke")[0] == 200
    everywhere(pair.gateways, "story-3", key["secret_access_key"], "InvalidAccessKeyId")
    reloads = [running.metric("larder_config_reloads_total", result="loaded") for running in pair.gateways]
    for running in pair.gateways:
        running.config.write_text(running.config.read_text() + "\n# written again\n")
    wait_until(
        lambda: all(
            running.metric("larder_config_reloads_total", result="loaded") > before
            for running, before in zip(pair.gateways, reloads, strict=True)
        ),
        SOON,
        "the file's being read again",
    )
    assert [refusal(running, "story-3", key["secret_access_key"]) for running in pair.gateways] == [
        "InvalidAccessKeyId"
    ] * 2


def test_without_postgresql_reads_go_on_and_nobody_starts(pair: Pair) -> None:
    """Rule: known keys are served, revoked ones refused, changes refused; a gateway that starts then authenticates no key."""
    one = pair.gateways[0]
    secrets = {}
    for name in ("story-4", "story-4-revoked"):
        secrets[name] = ask(one, "POST", "/credentials", {"access_key_id": name})[1]["secret_access_key"]
        everywhere(pair.gateways, name, secrets[name], "")
    ask(one, "POST", "/credentials/story-4-revoked/revoke")
    everywhere(pair.gateways, "story-4-revoked", secrets["story-4-revoked"], "InvalidAccessKeyId")
    pair.postgres.stop()
    try:
        wait_until(lambda: "catalog" in readiness(one)[1]["problems"], SOON, "the loss of the catalog")
        assert readiness(one)[0] == 200
        assert refusal(one, "story-4", secrets["story-4"]) == ""
        assert refusal(one, "story-4-revoked", secrets["story-4-revoked"]) == "InvalidAccessKeyId"
        status, problem = ask(one, "POST", "/credentials/story-4/revoke")
        assert (status, problem["code"]) == (503, "ServiceUnavailable")
        _starts_closed(pair, secrets)
    finally:
        pair.postgres.start()
    wait_until(lambda: all(readiness(running)[0] == 200 for running in pair.gateways), SOON, "readiness")
    everywhere(pair.gateways, "story-4", secrets["story-4"], "")
    everywhere(pair.gateways, "story-4-revoked", secrets["story-4-revoked"], "InvalidAccessKeyId")


def _starts_closed(pair: Pair, secrets: dict[str, str]) -> None:
    """The second gateway, restarted without its catalog, is not ready, refuses every key, and reports the reason."""
    pair.gateways[1].kill()
    second = pair.restart(1, unready=True)
    status, document = readiness(second)
    assert (status, document["state"]) == (503, "starting")
    assert "requests are refused until it has been read" in document["problems"]["catalog"]
    assert "catalog-unread" in document["problems"]
    for name, secret in secrets.items():
        assert refusal(second, name, secret) == "ServiceUnavailable"
    assert refusal(second, "GWA", "gateway-secret-a") == "ServiceUnavailable"
    connection = second.connection()
    connection.request("GET", "/bucket/key")
    assert connection.getresponse().headers["x-larder-cache"] == "BYPASS; reason=starting", "the origin was not asked"
    connection.close()


def test_a_gateway_that_is_killed_changes_all_or_nothing(pair: Pair) -> None:
    """Rule: after kill -9 during changes each record is complete, with its audit line; the other gateway continues."""
    one, other = pair.gateways
    made = 0
    connection = one.connection()
    connection.connect()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    for _ in range(10):
        connection.request("POST", "/-/admin/credentials", b'{"tenant": ""}', headers)
        made += connection.getresponse().read() != b""
    connection.request("POST", "/-/admin/credentials", b'{"description": "the last"}', headers)
    os.kill(one.process.pid, signal.SIGKILL)
    connection.close()
    one.process.wait(SOON)
    assert made == 10
    # One statement, so of one moment: PostgreSQL may still be keeping the last change.
    assert pair.postgres.ask(_UNEVEN, pair.database) == [(0, 0, 0)]
    assert ask(other, "POST", "/tenants", {"name": "after-the-kill"})[0] == 201
    pair.restart(0)
