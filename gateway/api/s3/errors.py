"""Failures in S3's words."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.edge.problems import RETRY
from gateway.model.datasets import ApiError
from gateway.model.errors import S3_CODES, DiskUnavailable, LarderError, OriginUnavailable, S3Error
from gateway.model.outcomes import Outcome, Reason
from gateway.server.refusals import error_document


class AboutCached(S3Error):
    """A refusal that follows from what is known of an object, such as 412 and 416: it has the outcome of the look-up."""

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


class NobodyKnown(S3Error):
    """Nobody can be verified yet: it is not known which keys are valid; ``why`` is for the client."""

    def __init__(self, why: str) -> None:
        super().__init__("ServiceUnavailable", explain=why, headers=RETRY)


def outcome_of(error: S3Error) -> tuple[Outcome, Reason | None]:
    """How a refusal counts, and why it was not a hit."""
    if isinstance(error, AboutCached):
        return error.outcome, error.reason
    if isinstance(error, NobodyKnown):
        return Outcome.BYPASS, Reason.STARTING
    if error.code == "SlowDown":
        return Outcome.BYPASS, Reason.OVERLOAD
    if error.status >= 500 and error.code != "NotImplemented":
        return Outcome.MISS, Reason.ORIGIN_ERROR
    return Outcome.BYPASS, Reason.REFUSED if error.status in (401, 403) else Reason.INVALID


def as_s3_error(failure: LarderError) -> S3Error:
    """Name a failure in S3's words."""
    if isinstance(failure, S3Error):
        return failure
    if isinstance(failure, ApiError) and failure.code in S3_CODES:
        return S3Error(failure.code, headers=failure.headers)
    if isinstance(failure, OriginUnavailable):
        # Where the origin is, and what is wrong there, is the operator's to know.
        explain = "The origin cannot be reached. Please try again."
        return S3Error("ServiceUnavailable", explain=explain, headers=RETRY, detail=str(failure))
    if isinstance(failure, DiskUnavailable):
        return S3Error("SlowDown", headers=RETRY)
    return S3Error("SlowDown", explain="The object changed while it was being read. Please try again.", headers=RETRY)


def render(error: S3Error, resource: str, request_id: str) -> bytes:
    """The XML document of an error (Amazon S3 API reference, "REST error responses")."""
    return error_document(error.code, error.message, request_id, {**error.extra, "Resource": resource})
