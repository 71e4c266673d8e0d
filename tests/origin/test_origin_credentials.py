"""The keys that sign a request, and the credential chain."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, MetadataRetrievalError

from gateway.base.config import Credential, Origin
from gateway.model.errors import OriginUnavailable
from gateway.model.keys import OriginIdentity
from gateway.origin.chain import CredentialChain
from gateway.origin.credentials import CHAIN_KEY, KeyRing, Keys, identity_of
from tests.origin.raw_server import EMPTY, RawServer, client_for, origin_at

KEYLESS = Origin(endpoint="http://127.0.0.1:1")
PLAIN = Credential(access_key_id="g", secret_access_key="s")


class Chain:
    """An aiobotocore session whose credentials a test can change; counts how often they are looked up."""

    def __init__(self, access_key: str = "temporary-1") -> None:
        self.access_key = access_key
        self.lookups = 0
        self.failure: Exception | None = None

    def __call__(self) -> Chain:
        """Stand in for the session's constructor."""
        return self

    async def get_credentials(self) -> Chain | None:
        """The chain's source, or ``None`` without one."""
        self.lookups += not self.access_key
        return self if self.access_key else None

    async def get_frozen_credentials(self) -> SimpleNamespace:
        """The keys of now."""
        self.lookups += 1
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(access_key=self.access_key, secret_key="secret", token="token")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        """Now."""
        return self.time


def test_identity_is_the_tenants_own_key_then_the_origins_then_the_chain() -> None:
    """Each principal is seen by the origin under the most particular keys there are."""
    keyed = Origin(endpoint="http://127.0.0.1:1", access_key_id="o", secret_access_key="s")
    own = Credential(access_key_id="g", secret_access_key="s", origin_access_key_id="t", origin_secret_access_key="s")
    assert identity_of(keyed, own) == OriginIdentity("default", "t")
    assert identity_of(keyed, PLAIN) == OriginIdentity("default", "o")
    assert identity_of(KEYLESS, PLAIN) == OriginIdentity("default", CHAIN_KEY)
    assert identity_of(keyed, None) == OriginIdentity("default", "")


def test_keys_are_a_tenants_own_whoever_pays() -> None:
    """Rule: who accepts the charges of a read signs with the same keys, so their withdrawal revokes the same."""
    own = Credential(access_key_id="g", secret_access_key="s", origin_access_key_id="o", origin_secret_access_key="t")
    ring = KeyRing([KEYLESS], [own, PLAIN], CredentialChain(Clock(), Chain()))
    identity = identity_of(KEYLESS, own)
    shared = identity_of(KEYLESS, PLAIN)
    assert [ring.owns(each) for each in (identity, identity.paying(), shared, shared.paying())] == [
        True,
        True,
        False,
        False,
    ]


async def test_an_anonymous_caller_does_not_get_the_chains_keys() -> None:
    """An unauthenticated caller does not use the gateway's role."""
    ring = KeyRing([KEYLESS], [], CredentialChain(Clock(), Chain()))
    assert await ring.keys(identity_of(KEYLESS, None)) is None
    assert await ring.keys(identity_of(KEYLESS, PLAIN)) == Keys("temporary-1", "secret", "token")


async def test_callers_share_one_answer_of_the_chain_for_a_minute() -> None:
    """The chain may ask the network; requests do not wait for it each time."""
    clock, session = Clock(), Chain()
    chain = CredentialChain(clock, session)
    await asyncio.gather(*(chain.current() for _ in range(10)))
    clock.time += 59
    await chain.current()
    assert session.lookups == 1


async def test_renewal_goes_on_behind_the_callers_back() -> None:
    """After a minute the next caller still gets the keys at once, and later ones the new keys."""
    clock, session = Clock(), Chain()
    chain = CredentialChain(clock, session)
    await chain.current()
    session.access_key = "temporary-2"
    clock.time += 61
    keys = await chain.current()
    assert keys == Keys("temporary-1", "secret", "token")
    async with asyncio.timeout(10):
        while keys != Keys("temporary-2", "secret", "token"):
            await asyncio.sleep(0.001)
            keys = await chain.current()


async def test_after_a_long_idle_time_the_caller_waits_for_new_keys() -> None:
    """Keys that may have expired meanwhile are not used."""
    clock, session = Clock(), Chain()
    chain = CredentialChain(clock, session)
    await chain.current()
    session.access_key = "temporary-2"
    clock.time += 3600
    assert await chain.current() == Keys("temporary-2", "secret", "token")


@pytest.mark.parametrize(
    "failure",
    [
        MetadataRetrievalError(error_msg="no answer"),
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no answer"}}, "AssumeRole"),
        RuntimeError("no answer: Credentials were refreshed, but the refreshed credentials are still expired."),
        PermissionError("no answer"),
        KeyError("no answer"),
        ValueError("no answer"),
    ],
)
async def test_keys_that_cannot_be_renewed_are_an_unavailable_origin(failure: Exception) -> None:
    """Sending the request unsigned instead would ask for something else."""
    session = Chain()
    session.failure = failure
    with pytest.raises(OriginUnavailable, match="no answer"):
        await CredentialChain(Clock(), session).current()


async def test_a_chain_without_keys_is_asked_once() -> None:
    """On a machine without credentials requests go unsigned and do not pay for looking again."""
    clock, session = Clock(), Chain(access_key="")
    chain = CredentialChain(clock, session)
    assert await chain.current() is None
    clock.time += 3600
    assert await chain.current() is None
    assert session.lookups == 1


async def test_the_real_chain_reads_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AWS_* variables are the first link of the chain (boto3 documentation, "Credentials")."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert await CredentialChain(Clock()).current() == Keys("from-environment", "s", "t")


async def test_an_origin_that_is_added_may_use_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an origin without keys that is added later is signed for with the credential chain."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    async with RawServer([[EMPTY]]) as server:
        client = await client_for(origin_at("http://127.0.0.1:1"))
        await client.replace([Origin(endpoint=server.endpoint)], ())
        (await client.send(identity_of(KEYLESS, PLAIN), "GET", "/b/k", "", ())).release()
        await client.close()
    assert b"Credential=from-environment/" in server.requests[0]


def _own_threads() -> set[str]:
    """The threads, without those by which asyncio waits for a process to end."""
    return {thread.name for thread in threading.enumerate() if "waitpid" not in thread.name}


async def test_the_real_chain_renews_keys_of_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys of ``credential_process`` that are about to expire are asked for again, without a thread."""
    expires = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    answer = {"Version": 1, "AccessKeyId": "p", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": expires}
    count, config = tmp_path / "count", tmp_path / "config"
    script = tmp_path / "keys.sh"
    script.write_text(f"echo >> {count}\necho '{json.dumps(answer)}'\n")
    config.write_text(f"[default]\ncredential_process = sh {script}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    before = _own_threads()
    clock = Clock()
    chain = CredentialChain(clock)
    assert await chain.current() == Keys("p", "s", "t")
    clock.time += 3600
    assert await chain.current() == Keys("p", "s", "t")
    assert len(count.read_text()) > 1
    assert _own_threads() == before


def test_secrets_do_not_show() -> None:
    """A log line with keys in it names the key only."""
    assert repr(Keys("id", "the-secret", "the-token")) == "Keys(access_key_id='id')"
