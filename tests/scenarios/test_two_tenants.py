"""Two tenants with rights of their own read through one cache. The origin is a real radosgw, which enforces them."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from rig.clients import Got, get
from rig.gateways import Running, Settings, s3_client
from rig.radosgw import Radosgw
from rig.world import KIB, blob_path, content, credentials, eventually, used_by

GRANT = 2.0
_ROLE = {"origin_access_key_id": "origin-key-a", "origin_secret_access_key": "origin-secret-a"}


@pytest.fixture(scope="module")
def settings(radosgw: Radosgw, tmp_path_factory) -> Settings:
    """Two tenants with origin keys of their own, and two that share A's, which only the gateway distinguishes."""
    shared = (
        {"access_key_id": "GWP", "secret_access_key": "gateway-secret-p", "allow": ["*/p/**"], **_ROLE},
        {"access_key_id": "GWQ", "secret_access_key": "gateway-secret-q", "allow": ["*/q/**"], **_ROLE},
    )
    return Settings(
        radosgw.endpoint,
        tmp_path_factory.mktemp("cache"),
        credentials=(*credentials("a", "b"), *shared),
        rules=({"match": "*/brief/**", "grant": GRANT},),
    )


@dataclass
class Tenants:
    """The owner's client at the origin itself, a bucket of his, and reads by either tenant through the gateway."""

    running: Running
    owner: Any
    other: Any
    bucket: str

    def put(self, key: str, body: bytes, acl: str = "private") -> str:
        """Store an object at the origin, as its owner; its path."""
        self.owner.put_object(Bucket=self.bucket, Key=key, Body=body, ACL=acl)
        return f"/{self.bucket}/{key}"

    def share(self, key: str, **acl: str) -> None:
        """Change an object's ACL at the origin."""
        self.owner.put_object_acl(Bucket=self.bucket, Key=key, **acl)

    def read(self, who: str, path: str) -> Got:
        """Read through the gateway as ``a``, ``b``, or anonymously."""
        name = f"GW{who.upper()}" if who else ""
        return get(self.running, path, name, f"gateway-secret-{who}")

    def checks(self) -> float:
        """Requests that the gateway sent to the origin so far."""
        return self.running.metric("larder_origin_requests_total")


@pytest.fixture
def tenants(running: Running, radosgw: Radosgw) -> Tenants:
    """Two tenants and a new bucket of the first."""
    owner, other = (s3_client(radosgw.endpoint, key, secret) for _, key, secret in radosgw.users)
    bucket = f"t-{uuid.uuid4().hex[:12]}"
    owner.create_bucket(Bucket=bucket)
    return Tenants(running, owner, other, bucket)


def test_b_is_refused_what_a_has_cached(tenants, settings):
    """An object that the origin refuses to B is refused from the cache too, and stays cached for A."""
    body = content(110 * KIB, "a's")
    path = tenants.put("secret", body)
    assert tenants.read("a", path).body == body
    refused = tenants.read("b", path)
    assert (refused.status, b"AccessDenied" in refused.body) == (403, True)
    again = tenants.read("a", path)
    assert (again.body, again.cache) == (body, "HIT")
    assert blob_path(settings.cache, body).exists()


def test_b_is_asked_for_once_and_then_hits(tenants):
    """A reader without a grant costs the origin one check and no bytes; with it he hits."""
    body = content(110 * KIB, "shared")
    path = tenants.put("shared", body)
    tenants.share("shared", GrantRead='id="tenant-b"', GrantFullControl='id="tenant-a"')
    tenants.read("a", path)
    asked, received = ("larder_origin_requests_total", "larder_origin_received_bytes_total")
    before = [tenants.running.metric(name) for name in (asked, received)]
    assert [tenants.read("b", path).cache for _ in range(2)] == ["HIT; reason=revalidated", "HIT"]
    assert [tenants.running.metric(name) for name in (asked, received)] == [before[0] + 1, before[1]]


def test_a_right_that_is_withdrawn_ends_within_the_grant_time(tenants):
    """A read that begins later than the grant time after the withdrawal at the origin is refused; others go on reading."""
    body = content(110 * KIB, "withdrawn")
    path = tenants.put("brief/withdrawn", body)
    tenants.share("brief/withdrawn", GrantRead='id="tenant-b"', GrantFullControl='id="tenant-a"')
    assert tenants.read("a", path).body == body
    assert tenants.read("b", path).body == body
    tenants.share("brief/withdrawn", ACL="private")
    withdrawn = time.monotonic()

    def read() -> Got:
        began = time.monotonic()
        got = tenants.read("b", path)
        assert got.status == 403 or began - withdrawn < GRANT
        return got

    eventually(read, lambda got: got.status == 403, "the end of the grant")
    assert tenants.read("b", path).status == 403
    assert tenants.read("a", path).body == body


def test_a_right_that_is_withdrawn_through_the_gateway_ends_at_once(tenants, running):
    """The gateway sees the new access list go by, and asks the origin about every reader again."""
    path = tenants.put("closed", content(1000, "closed"), acl="public-read")
    assert tenants.read("b", path).status == 200
    running.client("GWA", "gateway-secret-a").put_object_acl(Bucket=tenants.bucket, Key="closed", ACL="private")
    assert tenants.read("b", path).status == 403
    assert tenants.read("a", path).status == 200


def test_a_right_is_remembered_for_the_grant_time(tenants):
    """Within the grant time, reads do not check with the origin again."""
    path = tenants.put("remembered", content(1000, "remembered"))
    tenants.read("a", path)
    before = tenants.checks()
    assert [tenants.read("a", path).cache for _ in range(5)] == ["HIT"] * 5
    assert tenants.checks() == before


def test_nobody_reads_a_private_object(tenants):
    """Without credentials a private object is refused, cached or not."""
    path = tenants.put("private", content(1000, "private"))
    assert tenants.read("", path).status == 403
    assert tenants.read("a", path).status == 200
    assert tenants.read("", path).status == 403
    assert tenants.read("a", path).cache == "HIT"


def test_everybody_reads_a_public_object(tenants):
    """Without credentials a public-read object is given, from the cache too."""
    body = content(1000, "public")
    path = tenants.put("public", body, acl="public-read")
    for _ in range(2):
        got = tenants.read("", path)
        assert (got.status, got.body) == (200, body)
    assert got.cache == "HIT"


def test_a_public_read_proves_nothing_for_the_private_object_beside_it(tenants):
    """The grant of an anonymous read covers that object only."""
    tenants.read("", tenants.put("public", content(1000, "beside"), acl="public-read"))
    private = tenants.put("hidden", content(1000, "beside"))
    tenants.read("a", private)
    assert tenants.read("", private).status == 403


def test_b_may_not_copy_what_he_may_not_read(tenants, running):
    """A copy reads its source with the caller's rights, whether the source is cached or not."""
    path = tenants.put("source", content(1000, "source"))
    tenants.read("a", path)
    mine = f"t-{uuid.uuid4().hex[:12]}"
    tenants.other.create_bucket(Bucket=mine)
    client = running.client("GWB", "gateway-secret-b")
    with pytest.raises(client.exceptions.ClientError) as refusal:
        client.copy_object(Bucket=mine, Key="copy", CopySource=path[1:])
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert tenants.read("b", f"/{mine}/copy").status == 404


def test_teams_behind_one_origin_role_are_kept_apart_by_their_allow_lists(tenants, running):
    """The origin cannot distinguish the teams; the gateway refuses reads and copies of objects outside the allow-list."""
    path = tenants.put("p/object", content(1000, "p"))
    assert tenants.read("p", path).status == 200
    assert tenants.read("q", path).status == 403
    client = running.client("GWQ", "gateway-secret-q")
    with pytest.raises(client.exceptions.ClientError) as refusal:
        client.copy_object(Bucket=tenants.bucket, Key="q/copy", CopySource=path[1:])
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_missing_object_is_missing_for_its_owner_and_forbidden_for_others(tenants, order):
    """404 with the right to list, 403 without, in any order; once created, it is visible at once."""
    path = f"/{tenants.bucket}/missing"
    answers = {who: tenants.read(who, path).status for who in order}
    assert answers == {"a": 404, "b": 403}
    body = content(1000, path)
    tenants.put("missing", body, acl="public-read")
    assert [tenants.read(who, path).body for who in order] == [body, body]


def test_equal_bytes_are_stored_once_and_each_reader_proves_his_own_right(tenants, running, settings):
    """Two tenants' copies of the same data take the space of one; neither may read the other's."""
    body = content(300 * KIB, tenants.bucket)
    mine = tenants.put("copy-of-a", body)
    theirs = f"t-{uuid.uuid4().hex[:12]}"
    tenants.other.create_bucket(Bucket=theirs)
    tenants.other.put_object(Bucket=theirs, Key="copy-of-b", Body=body)
    before = eventually(
        lambda: running.metric("larder_cache_bytes"), lambda size: size == used_by(settings.cache), "a quiet cache"
    )
    assert tenants.read("a", mine).body == body
    assert tenants.read("b", f"/{theirs}/copy-of-b").body == body
    eventually(
        lambda: running.metric("larder_cache_bytes"), lambda size: size == before + len(body), "the bytes of one copy"
    )
    assert [tenants.read(*who).status for who in (("a", f"/{theirs}/copy-of-b"), ("b", mine))] == [403, 403]
    assert blob_path(settings.cache, body).exists()
