"""Announcements that Redis does not take: made by another node, or owed where all workers of the node see it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.fleet.nodes.announcer import Announcer, Timing
from gateway.model.keys import ObjectKey
from gateway.store.shared.generations import Generations

KEY = ObjectKey("default", "b", "k")
SHORT_TRUST = Timing(publish=60, answer=60, connect=60, dead=60)


class Refusing:
    """A Redis that is down."""

    async def publish(self, *_: object) -> int:
        """Refuse."""
        raise RedisConnectionError("refused")


async def test_what_another_node_announces_is_not_owed() -> None:
    """Without Redis, the worker asks another node to announce the write; if that succeeds, the announcement is not pending."""
    asked: list[Sequence[ObjectKey] | None] = []

    async def others(keys: Sequence[ObjectKey] | None) -> bool:
        asked.append(keys)
        return True

    debts = Generations()
    announcer = Announcer(cast(Redis, Refusing()), "me", SHORT_TRUST, others, debts)
    running = asyncio.create_task(announcer.run())
    await announcer.announce([KEY])
    running.cancel()
    assert (asked, announcer.unannounced, debts.in_debt) == ([[KEY]], 0, False)


async def test_what_nobody_announces_is_a_debt_until_somebody_does() -> None:
    """All workers of the node see it, and it is paid through another node as well as through Redis."""
    taking = False

    async def others(_keys: Sequence[ObjectKey] | None) -> bool:
        return taking

    debts = Generations()
    announcer = Announcer(cast(Redis, Refusing()), "me", replace(SHORT_TRUST, silence=0.0), others, debts)
    running = asyncio.create_task(announcer.run())
    await announcer.announce([KEY])
    await announcer.settle()
    assert (debts.owes(KEY), announcer.unannounced) == (True, 1)
    taking = True
    await announcer.settle()
    running.cancel()
    assert not debts.in_debt


async def test_a_process_owes_what_the_one_before_it_did() -> None:
    """A new process does not know which keys the previous one had pending, so it announces all keys."""
    asked: list[Sequence[ObjectKey] | None] = []

    async def others(keys: Sequence[ObjectKey] | None) -> bool:
        asked.append(keys)
        return True

    debts = Generations()
    debts.owe([KEY])
    announcer = Announcer(cast(Redis, Refusing()), "me", SHORT_TRUST, others, debts)
    running = asyncio.create_task(announcer.run())
    await asyncio.sleep(0)
    announcer.recall()
    await announcer.settle()
    running.cancel()
    assert (asked, debts.in_debt) == ([None], False)
