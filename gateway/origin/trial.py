"""One request to an origin before a start, so that a person sees failures immediately."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import NamedTuple

from gateway.base.config import Origin
from gateway.base.imports import imported
from gateway.model.errors import GatewayRefused, LarderError, OriginUnavailable
from gateway.model.keys import OriginIdentity
from gateway.net.exchange import StreamedResponse
from gateway.origin.client import CHAIN, OriginClient
from gateway.origin.refusals import refusal_of

_WITHIN = 10.0
"""Seconds that the origin may take to answer."""
_BEGINNING = 64 * 1024
"""Bytes of the answer that are examined: all of an error, or the beginning of a list of buckets."""
_OF_S3 = re.compile(rb"<Code>\w+</Code>|<(?:\w+:)?ListAllMyBucketsResult[ >]")
"""In every answer of a store to a signed request for its buckets: an S3 error, or the list."""


class KeysRefused(LarderError):
    """The origin does not accept the keys of the AWS credential chain."""


class Trial(NamedTuple):
    """The outcome of the request: whether the chain has keys, and a description of an origin that does not seem to be a store."""

    signed: bool
    doubt: str


async def try_keys(origin: Origin) -> Trial:
    """List the buckets of an origin whose keys come from the AWS credential chain.

    Without keys, requests are sent unsigned, which public buckets allow; stores then answer in various ways.

    Raises:
        OriginUnavailable: the origin does not answer, or the chain failed.
        KeysRefused: the origin refuses every request with the chain's keys.
    """
    keys = await imported(CHAIN).CredentialChain(time.time).current()
    asked = origin.model_copy(update={"read_timeout": _WITHIN} | (asdict(keys) if keys else {}))
    client = OriginClient([asked], (), now=time.time)
    try:
        answer = await _sent(client, OriginIdentity(origin.name, asked.access_key_id), origin.endpoint)
        body = b""
        while len(body) < _BEGINNING and (chunk := await answer.next_chunk()):
            body += chunk
        answer.release()
    except GatewayRefused as refused:
        refusal = refusal_of(400, refused.document, remedy="AWS_ACCESS_KEY_ID or AWS_PROFILE chooses another")
        if keys is None or refusal is None:
            raise
        raise KeysRefused(f"the origin refuses the key {keys.access_key_id}: {refusal.said}") from None
    finally:
        await client.close()
    if keys is None:
        return Trial(signed=False, doubt="")
    return Trial(signed=True, doubt=_doubt(origin.endpoint, answer.status, body))


async def _sent(client: OriginClient, identity: OriginIdentity, endpoint: str) -> StreamedResponse:
    """The answer to a request for the buckets; a failure names what to check."""
    try:
        return await client.send(identity, "GET", "/", "", ())
    except GatewayRefused:
        raise
    except OriginUnavailable as error:
        plain = f"it may speak plain http: http://{endpoint.partition('://')[2]}"
        remedy = plain if "WRONG_VERSION_NUMBER" in str(error) else "check its address, and whether it is running"
        raise OriginUnavailable(f"{error}; {remedy}") from None


def _doubt(endpoint: str, status: int, body: bytes) -> str:
    """Why an answer to a signed request for the buckets does not look like a store's; empty if it does."""
    if _OF_S3.search(body):
        return ""
    other = ""
    if status == 400 and endpoint.startswith("http://") and b"https" in body.lower():
        other = f"; it may want https: https://{endpoint.removeprefix('http://')}"
    return f"{endpoint} answers {status}, but not as an S3 store does{other}"
