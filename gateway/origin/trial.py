"""One request to an origin before a start, so that a person learns at once what would fail later."""

from __future__ import annotations

import re
import time
from dataclasses import asdict

from gateway.config import Origin
from gateway.imports import imported
from gateway.model.errors import LarderError
from gateway.model.keys import OriginIdentity
from gateway.origin.client import CHAIN, OriginClient

_WITHIN = 10.0
"""Seconds that the origin may take to answer."""
_ANSWER = 1024**2
"""Most bytes of the answer that are read: the list of an account's buckets."""
_ABOUT_KEYS = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)
"""Refusals of every request with these keys ("Error responses", Amazon S3 API reference); others may allow reads of objects."""


class KeysRefused(LarderError):
    """The origin does not accept the keys of the AWS credential chain."""


async def try_keys(origin: Origin) -> bool:
    """List the buckets of an origin whose keys come from the AWS credential chain.

    Returns:
        Whether the chain has keys. Without any, requests are sent unsigned, which public buckets allow.

    Raises:
        OriginUnavailable: the origin does not answer, or the chain failed.
        KeysRefused: the origin refuses every request with the chain's keys.
    """
    keys = await imported(CHAIN).CredentialChain(time.time).current()
    asked = origin.model_copy(update={"read_timeout": _WITHIN} | (asdict(keys) if keys else {}))
    client = OriginClient([asked], (), now=time.time)
    try:
        answer = await client.send(OriginIdentity(origin.name, asked.access_key_id), "GET", "/", "", ())
        code = re.search(rb"<Code>(\w+)</Code>", await answer.read(_ANSWER) if answer.status >= 400 else b"")
    finally:
        await client.close()
    if keys is not None and code is not None and code[1].decode() in _ABOUT_KEYS:
        raise KeysRefused(f"the origin refuses the key {keys.access_key_id}: {code[1].decode()}")
    return keys is not None
