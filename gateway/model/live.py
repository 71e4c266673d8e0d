"""A request that operators follow live, and their filter."""

from __future__ import annotations

from typing import NamedTuple


class LiveRequest(NamedTuple):
    """An answered S3 request, or a batch of a dataset.

    Attributes:
        at: when it ended, in seconds since the epoch, by its node's clock.
        node: the gateway that answered.
        request_id: as in the answer and in logs; empty for a batch.
        trace_id: of OpenTelemetry; empty without tracing.
        tenant: of the caller; empty if the request was refused before its tenant was known.
        access_key_id: of the caller.
        address: of the caller's connection.
        method: of HTTP.
        bucket: empty for none; ``dataset:NAME`` for a batch.
        key: empty for none; for a batch, how many of its items were hits.
        status: of HTTP.
        outcome: of the cache, such as HIT.
        reason: why it was not a plain hit; empty for a plain hit.
        bytes: of the body that was sent.
        seconds: from the request's header to the end of its answer.
    """

    at: float
    node: str
    request_id: str
    trace_id: str
    tenant: str
    access_key_id: str
    address: str
    method: str
    bucket: str
    key: str
    status: int
    outcome: str
    reason: str
    bytes: int
    seconds: float


class LiveFilter(NamedTuple):
    """Which requests to follow; an empty field matches all.

    ``status`` is a status such as ``404`` or a class such as ``4xx``; ``slower`` is a duration in seconds.
    """

    tenant: str = ""
    bucket: str = ""
    prefix: str = ""
    status: str = ""
    outcome: str = ""
    slower: float = 0.0

    def matches(self, request: LiveRequest) -> bool:
        """Whether a request is followed."""
        status = f"{request.status // 100}xx" if self.status.endswith("xx") else str(request.status)
        return (
            request.seconds >= self.slower
            and self.tenant in ("", request.tenant)
            and self.bucket in ("", request.bucket)
            and request.key.startswith(self.prefix)
            and self.status in ("", status)
            and self.outcome in ("", request.outcome)
        )
