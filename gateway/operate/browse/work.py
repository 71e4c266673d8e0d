"""A page of names of one place: an origin's buckets, or the folders and objects directly below a prefix.

The origin lists them with the rights of an access key, one of its pages per page. If it does not, the nodes' indices do: then
only cached objects are named. Where the allow-list covers no listing, only folders that lead to allowed objects are named.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from gateway.engine.base.homes import PREFIX, Node, PeerNodes
from gateway.model.errors import LarderError, OriginUnavailable
from gateway.model.keys import ObjectKey, Principal
from gateway.model.peer.principal import principal_header
from gateway.origin.listing import ListingRefused, Listings
from gateway.policies.reads.covering import ways
from gateway.store.index.names import CachedName
from gateway.store.store import Store

NAMES = f"{PREFIX}/names"
"""The address where nodes name their cached objects to each other."""
MOST = 1000
"""The most names on a page."""
LONGEST = 32 * 1024
_ANSWER = 16 * 1024**2
_PATIENCE = 5.0
"""Seconds that the origin may take to list a page."""


class NamesAfter(NamedTuple):
    """Where a page begins: after the last name of the previous page. The origin continues by ``token``, if there is one."""

    last: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class NamesPage:
    """A page of names, ordered, and where the next one begins.

    ``source`` says where the names come from; ``failure`` says why the origin does not list them, and which nodes do not answer.
    """

    names: Sequence[CachedName]
    source: Literal["origin", "cache", "allow-list"]
    next: NamesAfter | None = None
    failure: str = ""


class CachedNames:
    """Names of the objects that the fleet has cached.

    Args:
        store: of this node.
        fleet: the other nodes; ``None`` outside a fleet.
    """

    def __init__(self, store: Store, fleet: PeerNodes | None) -> None:
        self._store = store
        self._fleet = fleet

    async def page(self, principal: Principal, place: ObjectKey, last: str, limit: int) -> tuple[NamesPage, str]:
        """The first names after ``last`` on any node; and the nodes that could not be asked, with the reasons."""
        fleet, me = self._fleet, self._fleet and self._fleet.members.me
        others = [] if fleet is None else [node for node in fleet.members.nodes.values() if node.id != me]
        there = await asyncio.gather(*(self._at(node, principal, place, last, limit + 1) for node in others))
        answers = [
            await self._store.names(place, last, limit + 1),
            *(answer for answer in there if isinstance(answer, list)),
        ]
        names = _ordered(name for answer in answers for name in answer)
        failures = [answer for answer in there if isinstance(answer, str)]
        if not self._store.usable:
            failures.append("the disk of the node that answered is down")
        following = NamesAfter(names[limit - 1].name) if len(names) > limit else None
        return NamesPage(names[:limit], "cache", following), "; ".join(failures)

    async def _at(
        self, node: Node, principal: Principal, place: ObjectKey, last: str, limit: int
    ) -> list[CachedName] | str:
        assert self._fleet is not None
        header = principal_header(principal.tenant, principal.identity)
        body = json.dumps([*place, last, limit]).encode()
        try:
            answer = await self._fleet.peers.request(node, "POST", NAMES, [header], body=body)
            document: Any = json.loads(await answer.read(_ANSWER))
            if answer.status != 200:
                return f"node {node.id} answered {answer.status}"
            return [CachedName(str(name), size) for name, size in document]
        except LarderError as failure:
            return str(failure)
        except (ValueError, TypeError):
            return f"node {node.id} sent no list of names"


class Browser:
    """Lists places for operators.

    Args:
        listings: of the origins.
        cached: of the fleet.
    """

    def __init__(self, listings: Listings, cached: CachedNames) -> None:
        self._listings = listings
        self._cached = cached

    async def page(
        self, principal: Principal, bucket: str, prefix: str, after: NamesAfter | None, limit: int, *, cached: bool
    ) -> NamesPage:
        """A page of a place; without a bucket, a page of the buckets of the key's origin. ``cached``: do not ask the origin."""
        place = ObjectKey(principal.identity.origin, bucket, prefix)
        start = place.path if bucket else ""
        if not principal.may_list(start):
            return NamesPage(_ways(principal, bucket, start), "allow-list")
        why = ""
        if not cached and (after is None or after.token):
            try:
                async with asyncio.timeout(_PATIENCE):
                    return await self._listed(principal, place, after or NamesAfter(), limit)
            except TimeoutError:
                why = f"the origin did not list it within {_PATIENCE:.0f} seconds"
            except ListingRefused as refusal:
                why = f"the origin answered {refusal.status} to the listing with this access key's rights"
            except OriginUnavailable as failure:
                why = failure.told
            except LarderError as failure:
                why = str(failure)
        page, failures = await self._cached.page(principal, place, after.last if after else "", limit)
        return NamesPage(page.names, "cache", page.next, "; ".join(filter(None, (why, failures))))

    async def _listed(self, principal: Principal, place: ObjectKey, after: NamesAfter, limit: int) -> NamesPage:
        """The origin's page."""
        if not place.bucket:
            known = sorted(name for name in await self._listings.buckets(principal.identity) if name > after.last)
            following = NamesAfter(known[limit - 1], "buckets") if len(known) > limit else None
            return NamesPage([CachedName(name) for name in known[:limit]], "origin", following)
        listed = await self._listings.list_page(
            principal.identity, place.bucket, place.key, delimiter="/", token=after.token, limit=limit
        )
        folders = [CachedName(name) for name in listed.prefixes]
        names = _ordered([*folders, *(CachedName(name, size) for name, size in listed.objects)])
        following = NamesAfter(names[-1].name, listed.token) if listed.truncated and listed.token else None
        lost = "" if following or not listed.truncated else "the origin does not say how its listing goes on"
        return NamesPage(names, "origin", following, lost)


def _ordered(names: Iterable[CachedName]) -> list[CachedName]:
    """Every name once, in the order of UTF-8, which is also that of code points."""
    return sorted({cached.name: cached for cached in names}.values(), key=itemgetter(0))


def _ways(principal: Principal, bucket: str, start: str) -> list[CachedName]:
    """The names of a place that lead to what the allow-list covers."""
    folders = ways(principal.allow, start)
    return [CachedName(folder[len(bucket) + 1 :] if bucket else folder.rstrip("/")) for folder in folders]
