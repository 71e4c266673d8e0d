"""Warming up a prefix: its objects are listed at the origin and loaded, page by page, each at its home.

Listing and reading are done with the rights of a tenant's access key: what its allow-list does not cover is not loaded. First all
is counted, so that there is an end to tell the way to, and what is larger than the cache is refused: it would push itself out.
The order is the origin's, so a warm-up that was interrupted goes on after the last page that it has loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote_plus, urlencode
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from gateway.engine.operations.warm_objects import AT_ONCE, WarmObjects
from gateway.engine.operations.warming import Capacity, WarmupFailed, WarmupProgress, WarmupRefused, Whose, still
from gateway.model.errors import IdentityGone, LarderError
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.units import format_size
from gateway.origin.client import OriginClient
from gateway.policies.rules import Rules
from gateway.tasks import for_each

_PAGE = 1000
_PART = 200
_LONGEST_PAGE = 16 * 1024**2
_NOT_ALLOWED = "the allow-list of the access key does not cover it"
_RULED_OUT = "a rule says cache = false"


class ListedObject(NamedTuple):
    """An object, as the origin lists it."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is to be loaded."""

    bucket: str
    prefix: str


class WarmPrefix:
    """Loads one prefix.

    Args:
        wanted: which.
        whose: in whose name.
        origin: where it is listed.
        objects: loads objects.
        rules: that are in force.
        capacity: bytes that the caches of the fleet can hold.
    """

    def __init__(
        self,
        wanted: Prefix,
        whose: Whose,
        origin: OriginClient,
        objects: WarmObjects,
        rules: Callable[[], Rules],
        capacity: Capacity,
    ) -> None:
        self._wanted = wanted
        self._whose = whose
        self._origin = origin
        self._objects = objects
        self._rules = rules
        self._capacity = capacity

    async def run(self, progress: WarmupProgress) -> None:
        """See ``warming.Work``."""
        if progress.total is None:
            await self._count(progress)
        async for page in self._pages(progress.cursor):
            for start in range(0, len(page), _PART):
                part = page[start : start + _PART]
                await self._load(part, progress)
                progress.mark(part[-1].key)
        # Objects that came or went meanwhile are no mistake.
        progress.total = progress.done

    async def _count(self, progress: WarmupProgress) -> None:
        count = size = 0
        limit = self._capacity()
        async for page in self._pages(""):
            principal = still(self._whose)
            count += len(page)
            size += sum(each.size for each in page if not self._excluded(principal, each.key))
            if size > limit:
                raise WarmupRefused(
                    f"the objects below {self._wanted.bucket}/{self._wanted.prefix} have more than {format_size(limit)}, "
                    "which is what the caches of the fleet can hold: name a longer prefix, or add nodes"
                )
        progress.total, progress.total_bytes = count, size

    async def _load(self, part: list[ListedObject], progress: WarmupProgress) -> None:
        principal = still(self._whose)
        await for_each(part, lambda each: self._load_one(principal, each, progress), AT_ONCE)

    async def _load_one(self, principal: Principal, each: ListedObject, progress: WarmupProgress) -> None:
        if why := self._excluded(principal, each.key):
            progress.fail(each.key, why)
            return
        key = ObjectKey(principal.identity.origin, self._wanted.bucket, each.key)
        done = await self._objects.load(key, principal.tenant, principal.identity)
        if done.failure:
            progress.fail(each.key, done.failure)
        else:
            progress.loaded(done.size, done.there)

    def _excluded(self, principal: Principal, key: str) -> str:
        path = f"{self._wanted.bucket}/{key}"
        if not principal.may_touch(path):
            return _NOT_ALLOWED
        return "" if self._rules().for_path(path).cache else _RULED_OUT

    async def _pages(self, after: str) -> AsyncIterator[list[ListedObject]]:
        """The objects after a key, in the origin's order."""
        more = True
        while more:
            page, more = await self._page(still(self._whose).identity, after)
            if page:
                if page[-1].key == after:
                    raise WarmupFailed("the origin lists the same objects again when it is asked for those after them")
                yield page
                after = page[-1].key

    async def _page(self, identity: OriginIdentity, after: str) -> tuple[list[ListedObject], bool]:
        asked = {"encoding-type": "url", "list-type": "2", "max-keys": str(_PAGE), "prefix": self._wanted.prefix}
        if after:
            asked["start-after"] = after
        query = urlencode(sorted(asked.items()), quote_via=quote, safe="-_.~")
        try:
            response = await self._origin.send(identity, "GET", f"/{self._wanted.bucket}", query, [])
            body = bytearray()
            async for chunk in response.chunks():
                body += chunk
                if len(body) > _LONGEST_PAGE:
                    response.abort()
                    raise WarmupFailed("the origin's list of objects is longer than any list can be")
            response.release()
        except IdentityGone:
            raise WarmupFailed("the origin of the access key is not configured any more") from None
        except WarmupFailed:
            raise
        except LarderError:
            raise WarmupFailed("the origin cannot be reached; resume when it can") from None
        if response.status != 200:
            raise WarmupFailed(
                f"the origin answers {response.status} to listing the bucket with this access key's rights (ListBucket)"
            )
        return read_page(bytes(body))


def read_page(body: bytes) -> tuple[list[ListedObject], bool]:
    """One page of ListObjectsV2: the objects, and whether there are more. Keys are decoded if it says that they are encoded;
    stores that do not know ``encoding-type`` list them as they are.

    Raises:
        WarmupFailed: it is no such page.
    """
    try:
        root = fromstring(body, forbid_dtd=True)
        encoded = any(_local(each) == "EncodingType" and (each.text or "").strip() == "url" for each in root)
        found = [
            ListedObject(unquote_plus(_text(each, "Key")) if encoded else _text(each, "Key"), int(_text(each, "Size")))
            for each in root
            if _local(each) == "Contents"
        ]
        more = any(_local(each) == "IsTruncated" and (each.text or "").strip() == "true" for each in root)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise WarmupFailed("the origin's list of objects cannot be read") from None
    if more and not found:
        raise WarmupFailed("the origin's list of objects says that there are more, and lists none")
    # A "folder" that has an object of its own, with no bytes, is one like any other.
    return [each for each in found if each.key], more


def _text(element: Element, name: str) -> str:
    found = [child.text or "" for child in element if _local(child) == name]
    if len(found) != 1:
        raise ValueError(name)
    return found[0]


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
