"""Whether there is anything that a rule matches: the origins are asked for what they have under its fixed beginning.

One page of one listing per rule and origin, with the gateway's own keys there. So the answer "nothing" is certain only where the
page was the last; where keys go on after it, none of the first thousand matched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote_plus
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from gateway.config import Origin
from gateway.model.errors import IdentityGone, LarderError
from gateway.model.keys import OriginIdentity, glob_matches, is_bucket_name
from gateway.origin.client import OriginClient
from gateway.origin.credentials import CHAIN_KEY
from gateway.policies.covering import fixed_part

Verdict = Literal["matches", "nothing", "unknown"]
_PAGE = 1000
_LARGEST = 8 * 1024 * 1024
_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """What was found of a rule; ``example`` is a ``bucket/key`` that it matches."""

    verdict: Verdict
    why: str
    example: str = ""


class RuleProbe:
    """Asks the origins.

    Args:
        client: signs with the gateway's keys.
    """

    def __init__(self, client: OriginClient) -> None:
        self._client = client

    async def of(self, glob: str, origin: Origin) -> RuleMatch:
        """What an origin has that a rule's glob matches."""
        fixed = fixed_part(glob)
        bucket, slash, prefix = fixed.partition("/")
        if not slash and fixed == glob:
            return RuleMatch("nothing", f"it names no key; for all of a bucket write {f'{glob}/**'!r}")
        if not slash:
            return RuleMatch("unknown", "its bucket is a pattern; name a bucket and key to check it")
        if not is_bucket_name(bucket):
            return RuleMatch("nothing", f"no bucket can be called {bucket!r}")
        identity = OriginIdentity(origin.name, origin.access_key_id or CHAIN_KEY)
        query = f"list-type=2&max-keys={_PAGE}&encoding-type=url&prefix={quote(prefix, safe='')}"
        try:
            response = await self._client.send(identity, "GET", f"/{bucket}", query, [])
        except IdentityGone:
            return RuleMatch("unknown", f"the origin {origin.name!r} was changed meanwhile; check again")
        except LarderError:
            return RuleMatch("unknown", f"the origin {origin.name!r} cannot be reached")
        text = b""
        try:
            async for piece in response.chunks():
                text += piece
                if len(text) > _LARGEST:
                    return RuleMatch("unknown", f"the listing of the origin {origin.name!r} is too long")
        except LarderError:
            return RuleMatch("unknown", f"the origin {origin.name!r} broke off")
        finally:
            response.release()
        if response.status == 404:
            return RuleMatch("nothing", f"the origin {origin.name!r} has no bucket {bucket!r}")
        if response.status != 200:
            return RuleMatch(
                "unknown", f"the origin {origin.name!r} answers {response.status} to a listing of {bucket!r}"
            )
        return _judged(glob, bucket, prefix, text)


def _judged(glob: str, bucket: str, prefix: str, text: bytes) -> RuleMatch:
    try:
        root = fromstring(text)
    except (ParseError, DefusedXmlException, ValueError):
        return RuleMatch("unknown", "the origin's listing cannot be read")
    space = _NAMESPACE if root.tag.startswith("{") else ""
    encoded = root.findtext(f"{space}EncodingType") == "url"
    keys = [element.text or "" for element in root.findall(f"{space}Contents/{space}Key")]
    for key in keys:
        path = f"{bucket}/{unquote_plus(key) if encoded else key}"
        if glob_matches(glob, path):
            return RuleMatch("matches", "", path)
    where = f"begins with {prefix!r} in bucket {bucket!r}" if prefix else f"is in bucket {bucket!r}"
    if not keys:
        return RuleMatch("nothing", f"no key {where}")
    if root.findtext(f"{space}IsTruncated") == "true":
        return RuleMatch("unknown", f"none of the first {len(keys)} keys matches of what {where}")
    return RuleMatch("nothing", f"none of the {len(keys)} keys matches of what {where}")
