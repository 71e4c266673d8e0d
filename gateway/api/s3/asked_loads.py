"""HEAD with ``Range: bytes=0-0``: the answer is that of any HEAD, and the object is loaded in the background.

So a client warms the cache with a request that every SDK has; CoreWeave's LOTA accepts the same one. The load has the rights of
the reader, and the admission, order and limits of a warm-up.
"""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.api.s3.answer import Answer
from gateway.api.s3.call import S3Call
from gateway.engine.engine import Engine
from gateway.engine.objects.found import Forward, Relay
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.model.keys import ObjectKey, Principal

MOST = 4096
"""The most objects that wait for their load on one worker; further requests are answered and load nothing."""


def asks_for_load(call: S3Call) -> bool:
    """Whether a request asks to have its object loaded."""
    return call.request.method == "HEAD" and call.key is not None and call.request.fields.get(b"range") == b"bytes=0-0"


class AskedLoads:
    """Loads objects at their readers' request.

    Args:
        engine: the rules in force.
        objects: loads an object at its home.
    """

    def __init__(self, engine: Engine, objects: WarmObjects) -> None:
        self._engine = engine
        self._objects = objects
        self._waiting: set[tuple[ObjectKey, str]] = set()

    async def after(self, call: S3Call, answering: Awaitable[Answer | Relay | Forward]) -> Answer | Relay | Forward:
        """The answer to a request for a load; the load begins if the reader may read the object."""
        answer = await answering
        if isinstance(answer, Answer) and answer.status in (200, 206):
            assert call.key is not None
            reader = call.reader
            asked = (call.key, reader.identity.name)
            cached = self._engine.services.rules.for_path(call.key.path).cache
            if cached and asked not in self._waiting and len(self._waiting) < MOST:
                self._waiting.add(asked)
                self._engine.blocks.tasks.start(self._load(asked, reader))
        return answer

    async def _load(self, asked: tuple[ObjectKey, str], reader: Principal) -> None:
        try:
            await self._objects.load(asked[0], reader.tenant, reader.identity)
        finally:
            self._waiting.discard(asked)
