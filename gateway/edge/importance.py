"""Applies parts of scores, with the same errors for jobs (``/-/v1/jobs/{job}/importance``) and for other nodes."""

from __future__ import annotations

from gateway.base import metrics
from gateway.edge.problems import LATER, refused_field
from gateway.engine.space.score_exchange import ScoreExchange, ScoreSender
from gateway.model.datasets import ApiError
from gateway.model.importance import MalformedPart
from gateway.policies.items.importance import PartVerdict
from gateway.store.datasets.content import Content
from gateway.store.shared.importance import MOST_JOBS, Receipt, TooManyScorers


async def taken(
    exchange: ScoreExchange, sender: ScoreSender, content: Content, body: bytes, *, forwarded: bool = False
) -> Receipt:
    """Apply a part.

    Raises:
        ApiError: InvalidRequest, UnknownBase, TooLarge or ServiceUnavailable.
    """
    try:
        receipt = await exchange.receive(sender, content, body, forwarded=forwarded)
    except MalformedPart as mistake:
        metrics.SCORE_PARTS.labels("malformed").inc()
        raise refused_field(mistake.field, f"The part's field {mistake.field} {mistake.detail}.") from None
    except TooManyScorers:
        raise ApiError("TooLarge", f"As many as {MOST_JOBS} jobs send scores of this dataset already.") from None
    except OSError:
        raise ApiError(
            "ServiceUnavailable", "There is no memory for scores at the moment; go on, and try again.", headers=LATER
        ) from None
    if receipt.verdict is PartVerdict.UNKNOWN_BASE:
        raise ApiError(
            "UnknownBase",
            f"The last part that is known here is {receipt.sequence}; send a whole part.",
            sequence=receipt.sequence,
        )
    return receipt
