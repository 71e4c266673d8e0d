"""Forwards parts of scores to the homes of their items.

A client that reaches the nodes splits its scores by home, as it does with batches. One that reaches a single gateway sends all
scores there, and that gateway forwards each other home its items. An unreachable home is skipped; it will not know the base of
the next part, and the client, which learns of that, sends everything again. Nothing is applied here before the other homes have
accepted their shares, so once a part is accepted, all live homes have it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from pydantic import BaseModel, ValidationError

from gateway.base import metrics
from gateway.engine.base.homes import PREFIX, PeerNodes, keys_of
from gateway.engine.space.item_scores import ItemScores
from gateway.model.errors import LarderError
from gateway.model.fleet import Node
from gateway.model.importance import ScorePart, decode, encode
from gateway.model.keys import OriginIdentity
from gateway.model.peer.principal import principal_header
from gateway.policies.items.importance import PartVerdict
from gateway.store.datasets.content import Content
from gateway.store.shared.importance import DIRECT, FORWARDED, Receipt

_WITHIN = 10.0
"""Seconds after which a forwarded part counts as lost."""
_LONGEST_ANSWER = 4096
"""Bytes."""
_NOBODY = OriginIdentity("", "")

log = logging.getLogger("larder.importance")


@dataclass(frozen=True, slots=True)
class ScoreSender:
    """The sender of a part: a job of a tenant."""

    tenant: str
    job: str

    @property
    def key(self) -> str:
        """The job's name in the zone."""
        return f"{self.tenant}/{self.job}"


class ScoreExchange:
    """Applies score updates on one worker and forwards each home its share.

    Args:
        scores: of this worker.
        fleet: the other nodes; ``None`` outside a fleet.
        now: seconds since the epoch.
    """

    def __init__(self, scores: ItemScores, fleet: PeerNodes | None, now: Callable[[], float]) -> None:
        self._scores = scores
        self._fleet = fleet
        self._now = now

    async def receive(self, sender: ScoreSender, content: Content, body: bytes, *, forwarded: bool = False) -> Receipt:
        """Accept a part.

        Args:
            sender: the sender of the scores.
            content: the dataset.
            body: the bytes of the part.
            forwarded: whether another node sent it, which forwards the other homes' shares itself.

        Raises:
            MalformedPart: it does not fit this dataset.
            TooManyScorers: see ``ScoreTables.receive``.
            OSError: there is no memory for the scores.
        """
        part = await asyncio.to_thread(decode, body, content.items)
        if not forwarded:
            refused = await self._forward(sender, content, part)
            if refused is not None:
                metrics.SCORE_PARTS.labels(PartVerdict.UNKNOWN_BASE.value).inc()
                return Receipt(PartVerdict.UNKNOWN_BASE, refused, 0)
        receipt = await asyncio.to_thread(
            self._scores.tables.receive,
            sender.key,
            content.id,
            content.items,
            part,
            crc32(body),
            FORWARDED if forwarded else DIRECT,
            self._now(),
        )
        self._scores.changed(content.id)
        metrics.SCORE_PARTS.labels(receipt.verdict.value).inc()
        return receipt

    async def _forward(self, sender: ScoreSender, content: Content, part: ScorePart) -> int | None:
        """Forward each home its items; returns the sequence of a home that does not know the base of this part."""
        if self._fleet is None or self._fleet.members.alone:
            return None
        members = self._fleet.members
        of_scored, nodes = await asyncio.to_thread(members.homes, keys_of(content, part.scored))
        of_listed, others = await asyncio.to_thread(members.homes, keys_of(content, part.listed))
        if nodes != others or not ((of_scored >= 0).any() or (of_listed >= 0).any()):
            return None
        # Send to each home, even an empty share: the next part adds to this one everywhere.
        parts = {
            node: part.only(of_scored == number, of_listed == number)
            for number, node in enumerate(nodes)
            if node.id != members.me
        }
        answers = await asyncio.gather(*(self._send(node, sender, content, share) for node, share in parts.items()))
        return min((answer for answer in answers if answer is not None), default=None)

    async def _send(self, node: Node, sender: ScoreSender, content: Content, part: ScorePart) -> int | None:
        assert self._fleet is not None
        body = await asyncio.to_thread(encode, part, content.items)
        headers = (principal_header(sender.tenant, _NOBODY),)
        try:
            async with asyncio.timeout(_WITHIN):
                answer = await self._fleet.peers.request(
                    node, "PUT", f"{PREFIX}/importance/{content.id}/{sender.job}", headers, body=body
                )
                text = await answer.read(_LONGEST_ANSWER)
        except (LarderError, OSError, TimeoutError) as failure:
            log.info("node %(node)s did not take scores: %(error)s", {"node": node.id, "error": failure})
            return None
        metrics.SCORE_PARTS.labels("forwarded").inc()
        return _held(text) if answer.status == 409 else None


def _held(text: bytes) -> int:
    """The sequence that a home reports; 0 without one."""
    try:
        return ScoresHeld.model_validate_json(text).sequence
    except ValidationError:
        return 0


class ScoresHeld(BaseModel):
    """The field of a refusal that names the last part that the home has."""

    sequence: int = 0
