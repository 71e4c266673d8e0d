"""The request with which a start without a configuration tries its origin, and the message that follows."""

from __future__ import annotations

import pytest

from gateway.base.config import Origin
from gateway.model.errors import OriginUnavailable
from gateway.origin.trial import KeysRefused, Trial, try_keys
from rig.origin import FakeOrigin
from tests.origin.raw_server import RawServer

LIST = b'<?xml version="1.0"?><ListAllMyBucketsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Buckets/>'
HTTPS_WANTED = b"<html><h1>400 Bad Request</h1>The plain HTTP request was sent to HTTPS port</html>"


def answer(status: int, body: bytes) -> bytes:
    """An answer whole."""
    return b"HTTP/1.1 %d It\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def error(code: str, message: str) -> bytes:
    """An error document of S3."""
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


@pytest.fixture(autouse=True)
def chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The AWS credential chain has a key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


async def tried(status: int, body: bytes) -> Trial:
    """Try the keys of an origin that gives this answer."""
    async with RawServer([[answer(status, body)]]) as server:
        return await try_keys(Origin(endpoint=server.endpoint))


@pytest.mark.parametrize(
    ("status", "body"), [(200, LIST), (200, LIST + b" " * 200_000), (403, error("AccessDenied", "No list for you."))]
)
async def test_a_store_raises_no_doubt(status: int, body: bytes) -> None:
    """Rule: a list of any length, and an error of S3 that may concern only the list, are answers of a store."""
    assert await tried(status, body) == Trial(signed=True, doubt="")


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        ("InvalidAccessKeyId", "Unknown key.", "refuses the key OK: InvalidAccessKeyId; Unknown key"),
        ("AuthorizationHeaderMalformed", "Wrong; expecting 'eu-west-1'", "'eu-west-1'; the region of the origin is another"),
        ("RequestTimeTooSkewed", "Too large.", "set the clock of this machine"),
    ],
)  # fmt: skip
async def test_a_refusal_of_the_keys_says_what_the_store_says(code: str, message: str, told: str) -> None:
    """Rule: a refusal has the store's code and message, and one remedy: another key only where the key is at fault."""
    with pytest.raises(KeysRefused) as refused:
        await tried(403, error(code, message.replace("'", "&apos;")))
    assert told in str(refused.value)
    assert ("chooses another" in str(refused.value)) == (code == "InvalidAccessKeyId")


async def test_tls_to_a_plain_port_is_explained() -> None:
    """Rule: https:// to a store that speaks plain HTTP names the address that may be meant."""
    async with FakeOrigin() as origin:
        plain = origin.endpoint
        with pytest.raises(OriginUnavailable, match=f"it may speak plain http: {plain}$"):
            await try_keys(Origin(endpoint=plain.replace("http:", "https:")))


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"<html>It works!</html>", "answers 200, but not as an S3 store does"),
        (404, b"", "answers 404, but not as an S3 store does"),
        (400, HTTPS_WANTED, "it may want https: https://127.0.0.1:"),
    ],
)
async def test_what_is_no_store_is_doubted(status: int, body: bytes, told: str) -> None:
    """Rule: an answer without S3's words is named, as is a port that wants TLS."""
    trial = await tried(status, body)
    assert trial.signed
    assert told in trial.doubt
