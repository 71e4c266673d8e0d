"""One origin asked twice: directly and through gateways, whose caches are put into a chosen state before."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from tests.differential.asks import Ask, Door, Keys, Reply
from tests.differential.corpus import BLOCK, Object
from tests.differential.generator import Known
from tests.differential.sameness import Ledger

DOMAIN = "s3.test"
ORIGIN_KEYS: Mapping[str, Keys] = {
    "a": ("origin-key-a", "origin-secret-a"),
    "b": ("origin-key-b", "origin-secret-b"),
}
GATEWAY_KEYS: Mapping[str, Keys] = {"a": ("GWA", "gateway-secret-a"), "b": ("GWB", "gateway-secret-b")}
CREDENTIALS = (
    {"access_key_id": "GWA", "secret_access_key": "gateway-secret-a", "tenant": "a"},
    {
        "access_key_id": "GWB",
        "secret_access_key": "gateway-secret-b",
        "tenant": "b",
        "origin_access_key_id": "origin-key-b",
        "origin_secret_access_key": "origin-secret-b",
    },
)
"""The credentials of a gateway's configuration: each has its own keys at the origin."""

_WITHIN = 30.0


def gateway_door(endpoint: str) -> Door:
    """A door to a gateway with ``CREDENTIALS`` and the domain ``DOMAIN``."""
    return Door(endpoint, GATEWAY_KEYS, domain=DOMAIN, forms=("presigned", "presigned-v2"))


def origin_door(endpoint: str) -> Door:
    """A door to the origin itself."""
    return Door(endpoint, ORIGIN_KEYS)


@dataclass
class Sides:
    """The two ways to one origin, and one bucket there."""

    direct: Door
    through: Door
    bucket: str
    ledger: Ledger

    def store(self, objects: Iterable[Object]) -> list[Known]:
        """Put objects at the origin, behind the gateway's back, and look at what became of them."""
        found = []
        for item in objects:
            put = Ask("PUT", self.bucket, item.raw_key, headers=item.headers, body=item.body)
            stored = self.direct.send(put)
            assert stored.status == 200, f"{put}: {stored.status} {stored.code}"
            found.append(self.known(item.raw_key))
        return found

    def known(self, raw_key: str) -> Known:
        """Learn about an object by a HEAD at the origin."""
        told = self.direct.send(Ask("HEAD", self.bucket, raw_key))
        assert told.status == 200, f"{raw_key}: {told.status}"
        modified = parsedate_to_datetime(told.headers["last-modified"]).timestamp()
        return Known(self.bucket, raw_key, int(told.headers["content-length"]), told.headers["etag"], modified)

    # -- states of the cache

    def forget(self, known: Known) -> None:
        """Make the gateway forget an object without changing it: by a copy from nothing onto it, which the origin refuses."""
        nothing = (("x-amz-copy-source", f"/{self.bucket}/there/is/no/such/key"),)
        refused = self.through.send(Ask("PUT", self.bucket, known.raw_key, headers=nothing))
        assert refused.status == 404, f"{known}: {refused.status} {refused.code}"

    def warm(self, known: Known) -> None:
        """Have every byte of the object in the cache."""
        self._until_hit(known.ask())

    def warm_block(self, known: Known, number: int) -> None:
        """Have one block of the object in the cache, and no other."""
        self.forget(known)
        first = number * BLOCK
        last = min(known.size, first + BLOCK) - 1
        self._until_hit(replace(known.ask(), headers=(("Range", f"bytes={first}-{last}"),)))

    def _until_hit(self, ask: Ask) -> None:
        # The last block is recorded just after the reader got its last byte; asking again is all the waiting it takes.
        deadline = time.monotonic() + _WITHIN
        while (reply := self.through.send(ask)).cache != "HIT":
            assert time.monotonic() < deadline, f"{ask} never became a hit: {reply.status} {reply.cache}"

    # -- comparisons

    def compare(self, state: str, ask: Ask, direct: Reply | None = None) -> Reply:
        """Ask both sides the same; ``direct`` is the origin's reply when it is known already."""
        reply = self.through.send(ask)
        self.ledger.compare(state, ask, self.direct.send(ask) if direct is None else direct, reply)
        return reply

    def compare_in_states(self, known: Known, asks: Sequence[Ask], *, cold: int) -> None:
        """Compare reads of one object: the first ``cold`` of them cold and partially resident, all of them warm, twice.

        Nothing may write to the object between them, so the origin is asked once for each.
        """
        replies = [(ask, self.direct.send(ask)) for ask in asks]
        for ask, direct in replies[:cold]:
            self.forget(known)
            if self.compare("cold", ask, direct).cache.startswith("HIT"):
                self.ledger.wrong.append(f"cold: {ask}: answered from a cache that had forgotten the object")
        blocks = max(1, -(-known.size // BLOCK))
        for number, (ask, direct) in enumerate(replies[:cold] if blocks > 1 else ()):
            self.warm_block(known, (number * 5 + 1) % blocks)
            self.compare("partial", ask, direct)
        self.forget(known)
        self.warm(known)
        for state in ("warm", "warm again"):
            for ask, direct in replies:
                self.compare(state, ask, direct)


def digest(seed: str) -> int:
    """A seed for a generator, from a text."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
