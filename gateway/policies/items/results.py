"""Decides which results of a PUT are stored, and who may compute a missing one.

The first result of an item stays: equal fingerprints compute equal results, so a second one adds nothing. A pool of results has
the order ``uniform``: nothing leaves it for another result of the same pool, because in the next epoch each is as likely to be
read as any other. So results beyond its target are refused, and the client computes them in every epoch. A collection without a
pool, because no plan has been made since it began, stores results while they fit without eviction. A client that cannot decode a
result replaces it: then nothing counts as known, and each result needs less room by the bytes of the result that it replaces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from gateway.model.results import PutResult

_NONE: Mapping[int, int] = MappingProxyType({})


def claimable(held: Mapping[int, tuple[int, str] | None], owner: str, now: int) -> list[int]:
    """The results that an owner may compute now: unclaimed ones, its own claims, and those whose claim has expired.

    Args:
        held: the claim on each, by index: its expiry and its owner; ``None`` for none.
        owner: who asks.
        now: on the clock of the claims.
    """
    return [index for index, claim in held.items() if claim is None or claim[1] == owner or claim[0] <= now]


def judged(
    sizes: Mapping[int, int], known: Collection[int], room: int, largest: int, freed: Mapping[int, int] = _NONE
) -> dict[int, PutResult]:
    """Decide on each result of a PUT; ``STORED`` means that it should be stored.

    Args:
        sizes: bytes by index of the item, in the order of the request.
        known: indices that have a result.
        room: bytes that may be stored.
        largest: bytes of the largest result.
        freed: bytes that leave the pool when the result of an index is replaced, by index.
    """
    outcomes = {}
    for index, size in sizes.items():
        if index in known:
            outcomes[index] = PutResult.KNOWN
        elif size > largest:
            outcomes[index] = PutResult.TOO_LARGE
        elif (more := size - freed.get(index, 0)) > room:
            outcomes[index] = PutResult.FULL
        else:
            outcomes[index] = PutResult.STORED
            room -= more
    return outcomes
