"""Signatures towards the origin, checked against botocore and the fake origin's own verification."""

from __future__ import annotations

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gateway.model.errors import GatewayRefused
from gateway.origin import signing
from gateway.origin.credentials import Keys
from gateway.origin.signing import Signer
from rig.origin import FakeOrigin, User
from tests.origin.test_origin_client import AS_ALICE, client_for, origin_at

KEYS = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session-token")
AT = 1_795_000_000.0


def sign(
    signer: Signer, path: str = "/b/k", query: str = "", extra: tuple[tuple[str, str], ...] = ()
) -> dict[str, str]:
    """The headers of a signed GET."""
    headers = signer.signed("GET", path, query, extra, KEYS, "s3.example", "eu-west-1", "UNSIGNED-PAYLOAD")
    return {name.lower(): value for name, value in headers}


@pytest.mark.parametrize("path", ["/b/k", "/b/a%20b", "/b//x", "/b/a/../c", "/b/%C3%A9%25"])
@pytest.mark.parametrize("query", ["", "list-type=2&prefix=a%2Fb", "uploads=", "b=2&a=1"])
def test_signatures_equal_botocores(path: str, query: str) -> None:
    """Same request, same second, same signature as the reference implementation."""
    ours = sign(Signer(lambda: AT), path, query, (("x-amz-meta-a", "one  two"), ("Content-Type", "text/plain")))
    request = AWSRequest("GET", f"https://s3.example{path}" + (f"?{query}" if query else ""))
    for name in ("x-amz-meta-a", "content-type", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token"):
        request.headers[name] = ours[name]
    request.context["timestamp"] = ours["x-amz-date"]
    auth = S3SigV4Auth(Credentials(KEYS.access_key_id, KEYS.secret_access_key, KEYS.session_token), "s3", "eu-west-1")
    text = auth.string_to_sign(request, auth.canonical_request(request))
    assert ours["authorization"].endswith(f"Signature={auth.signature(text, request)}")


def test_range_and_other_plain_headers_are_not_signed() -> None:
    """Plain headers stay unsigned: a short canonical request is cheap, and a proxy may rewrite unsigned headers."""
    value = sign(Signer(lambda: AT), extra=(("Range", "bytes=0-1"), ("If-Match", '"x"')))["authorization"]
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token," in value


def test_requests_of_one_second_are_each_signed_for_what_they_ask() -> None:
    """The signer's cache never applies to another path, query, header, host, key or body."""
    signer, kept = Signer(lambda: AT), []
    other = Keys("AKIDOTHER", KEYS.secret_access_key, "")

    def signed(
        path: str = "/b/k", query: str = "", region: str = "eu-west-1", body: str = "UNSIGNED-PAYLOAD", keys: Keys = KEYS,
        extra: str = "1", host: str = "s3.example",
    ) -> None:  # fmt: skip
        for each in (signer, Signer(lambda: AT)):
            headers = [("x-amz-meta-a", extra)]
            made = each.signed("GET", path, query, headers, keys, host, region, body)
            kept.append(dict(made)["Authorization"])

    for differing in (
        {},
        {"path": "/b/l"},
        {"query": "a=1"},
        {"region": "x"},
        {"body": "0"},
        {"keys": other},
        {"extra": "2"},
        {"host": "other.example"},
    ):
        signed()
        signed(**differing)  # type: ignore[arg-type]
    assert kept[::2] == kept[1::2]
    assert len(set(kept)) == 8


def test_a_signing_key_is_derived_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four HMACs per key, day and region, not per request."""
    derived: list[str] = []
    derive = signing.sigv4.signing_key

    def counting(secret: str, day: str, region: str) -> bytes:
        derived.append(day)
        return derive(secret, day, region)

    monkeypatch.setattr(signing.sigv4, "signing_key", counting)
    times = iter([AT, AT + 1, AT + 86_400])
    signer = Signer(lambda: next(times))
    stamps = [sign(signer)["x-amz-date"] for _ in range(3)]
    assert len(set(stamps)) == 3
    assert derived == [stamps[0][:8], stamps[2][:8]]


async def test_temporary_keys_come_with_their_token() -> None:
    """The origin accepts keys of a session only together with the session's token."""
    user = User("origin-key-a", "origin-secret-a", session_token="the-token")
    async with FakeOrigin([user]) as origin:
        origin.put("b", "k", b"x")
        client = await client_for(origin_at(origin.endpoint, session_token="the-token"))
        response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        assert (response.status, await response.read(1000)) == (200, b"x")
        await client.close()
        client = await client_for(origin_at(origin.endpoint))
        with pytest.raises(GatewayRefused, match="InvalidToken"):
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        await client.close()
