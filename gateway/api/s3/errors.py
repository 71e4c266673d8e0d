"""Maps failures to S3 errors."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.base import metrics
from gateway.edge.problems import RETRY
from gateway.model.datasets import ApiError
from gateway.model.errors import (
    S3_CODES,
    DiskUnavailable,
    GatewayRefused,
    LarderError,
    OriginBusy,
    OriginUnavailable,
    OutOfResources,
    RateLimited,
    S3Error,
)
from gateway.model.outcomes import Outcome, Reason
from gateway.server.refusals import error_document


class AboutCached(S3Error):
    """A refusal that depends on a cached object, such as 412 and 416: it carries the outcome of the look-up."""

    def __init__(
        self,
        code: str,
        found: tuple[Outcome, Reason | None],
        *,
        extra: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code, extra=extra, headers=headers)
        self.outcome, self.reason = found


class CredentialsUnknown(S3Error):
    """No request can be verified yet, because the valid keys are unknown; ``why`` is shown to the client."""

    def __init__(self, why: str) -> None:
        super().__init__("ServiceUnavailable", explain=why, headers=RETRY)


def outcome_of(error: S3Error) -> tuple[Outcome, Reason | None]:
    """The outcome and reason that a refusal is counted under."""
    if isinstance(error, AboutCached):
        return error.outcome, error.reason
    if isinstance(error, CredentialsUnknown):
        return Outcome.BYPASS, Reason.STARTING
    if isinstance(error, RateLimited):
        return Outcome.BYPASS, Reason.RATE_LIMIT
    if error.code == "SlowDown":
        return Outcome.BYPASS, Reason.OVERLOAD
    if error.status >= 500 and error.code != "NotImplemented":
        return Outcome.MISS, Reason.ORIGIN_ERROR
    return Outcome.BYPASS, Reason.REFUSED if error.status in (401, 403) else Reason.INVALID


_REFUSED = "The origin refuses the gateway's own request. Your access key is not the cause: the operator of the gateway must act."


def as_s3_error(failure: LarderError) -> S3Error:
    """The S3 error for a failure."""
    if isinstance(failure, S3Error):
        return failure
    if isinstance(failure, ApiError) and failure.code in S3_CODES:
        return S3Error(failure.code, headers=failure.headers)
    if isinstance(failure, OriginBusy):
        metrics.SHED.labels("origin").inc()
        explain = "All connections to the origin are in use. Please try again."
        return S3Error("SlowDown", explain=explain, headers=RETRY, detail=str(failure))
    if isinstance(failure, GatewayRefused):
        return S3Error("ServiceUnavailable", explain=_REFUSED, headers=RETRY, detail=str(failure))
    if isinstance(failure, OutOfResources):
        metrics.SHED.labels("process").inc()
        explain = "The gateway is out of descriptors or memory. Please try again."
        return S3Error("SlowDown", explain=explain, headers=RETRY, detail=str(failure))
    if isinstance(failure, OriginUnavailable):
        # The origin's address and failure concern the operator, not the client.
        explain = "The origin cannot be reached. Please try again."
        return S3Error("ServiceUnavailable", explain=explain, headers=RETRY, detail=str(failure))
    if isinstance(failure, DiskUnavailable):
        return S3Error("SlowDown", headers=RETRY)
    return S3Error("SlowDown", explain="The object changed while it was being read. Please try again.", headers=RETRY)


def render(error: S3Error, resource: str, request_id: str) -> bytes:
    """The XML document of an error (Amazon S3 API reference, "REST error responses")."""
    return error_document(error.code, error.message, request_id, {**error.extra, "Resource": resource})
