"""An origin that refuses the gateway's own key is reported in the log and among the problems, not only to the client."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from gateway.base.config import Origin
from gateway.model.errors import GatewayRefused
from gateway.model.keys import OriginIdentity
from gateway.origin.chain import CredentialChain
from gateway.origin.client import OriginClient
from gateway.origin.credentials import identity_of
from gateway.origin.refusals import Refusals, refusal_of
from rig.gateways import Settings, gateway
from rig.origin import ALICE, FakeOrigin, OriginThread
from rig.origin_auth import User
from rig.v1 import ask
from tests.origin.raw_server import AS_ALICE, client_for, origin_at
from tests.origin.test_origin_credentials import PLAIN, Chain, Clock

SAID = "he origin 'default' refuses a key of the gateway: SignatureDoesNotMatch; the log names it"


async def read(client: OriginClient, path: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    answer = await client.send(AS_ALICE, "GET", path, "", ())
    return answer.status, await answer.read(10_000)


async def test_a_refused_key_is_a_problem_until_it_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """Rule: it is logged once and listed; requests raise ``GatewayRefused``; an answer to the key ends it."""
    async with FakeOrigin([User(ALICE.access_key_id, "another secret")]) as origin:
        origin.put("b", "k", b"body")
        client = await client_for(origin_at(origin.endpoint))
        with caplog.at_level(logging.WARNING, "larder.origin"):
            for _ in range(2):
                with pytest.raises(GatewayRefused, match="SignatureDoesNotMatch"):
                    await read(client, "/b/k")
        assert SAID in client.refused_keys
        [logged] = caplog.records
        assert f"refuses the gateway's key {ALICE.access_key_id}: SignatureDoesNotMatch" in logged.getMessage()
        origin.users = [ALICE]
        assert await read(client, "/b/k") == (200, b"body")
        assert client.refused_keys == ""
        await client.close()


async def test_a_chain_that_lost_its_keys_is_a_problem_of_the_gateway(caplog: pytest.LogCaptureFixture) -> None:
    """Rule: requests raise ``GatewayRefused``, which serves STALE and ends no grant, and none is sent unsigned; the problem has a
    remedy, is logged once, and ends with new keys."""
    session, clock = Chain("origin-key-a"), Clock()
    async with FakeOrigin([User("origin-key-a", "secret", "token")]) as origin:
        client = OriginClient([Origin(endpoint=origin.endpoint)], [PLAIN], now=time.time)
        client._chain._chain = CredentialChain(clock, session)
        identity = identity_of(Origin(endpoint=origin.endpoint), PLAIN)
        (await client.send(identity, "HEAD", "/b/k", "", ())).release()
        clock.time, session.failure = clock.time + 600, RuntimeError("still expired")
        with caplog.at_level(logging.WARNING, "larder.origin"):
            for paying in (False, True, False):
                with pytest.raises(GatewayRefused, match="still expired") as refused:
                    await client.send(identity.paying() if paying else identity, "GET", "/b/k", "", ())
                assert not refused.value.revokes
        assert len(origin.seen) == 1
        assert client.refused_keys.startswith(
            "the gateway has no keys for the origin 'default'; the log names it; give the"
        )
        assert [each.getMessage()[:30] for each in caplog.records[:1]] == ["no keys for the origin 'defaul"]
        session.failure = None
        for each in (identity, identity.paying()):
            (await client.send(each, "HEAD", "/b/k", "", ())).release()
        assert client.refused_keys == ""
        await client.close()


async def test_a_right_that_is_missing_is_no_refused_key() -> None:
    """Rule: AccessDenied is about an object and its reader; a HEAD has no document to look at."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"body")
        origin.deny(ALICE.access_key_id, "b/*")
        client = await client_for(origin_at(origin.endpoint))
        assert (await read(client, "/b/k"))[0] == 403
        answer = await client.send(AS_ALICE, "HEAD", "/b/k", "", ())
        answer.release()
        assert (answer.status, client.refused_keys) == (403, "")
        await client.close()


def test_a_refusal_is_forgotten_after_a_while() -> None:
    """Rule: the problem of a refused key ends when the key is no longer used."""
    now = 0.0
    keys = Refusals(lambda: now)
    refusal = refusal_of(403, b"<Error><Code>InvalidAccessKeyId</Code><Message>Unknown.</Message></Error>")
    assert refusal is not None
    keys.refused(OriginIdentity("o", "k"), refusal)
    assert keys.problem.startswith(
        "the origin 'o' refuses a key of the gateway: InvalidAccessKeyId; the log names it; correct"
    )
    now = 301.0
    assert keys.problem == ""


def test_an_operator_sees_a_refused_key(tmp_path: Path) -> None:
    """Rule: /-/readyz, which is public, lists origin-keys if the origin refuses a key, without naming the key."""
    users = [User("origin-key-a", "another secret")]
    with OriginThread(users) as origin, gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        with pytest.raises(ClientError, match=r"ServiceUnavailable.*Your access key is not the cause"):
            running.client().get_object(Bucket="b", Key="k")
        problems = json.loads(ask(running, "GET", "/readyz", key=None).body)["problems"]
    assert SAID in problems["origin-keys"]
