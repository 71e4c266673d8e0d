"""Problem documents (RFC 9457): the form of every error under ``/-/``, with a ``code`` for programs.

If S3 has a code for the error, above all for errors about signatures, that code is used. The S3 edge answers with
S3's XML documents instead (``gateway/api/s3/errors.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import Logger
from typing import Any

from pydantic import BaseModel, Field

from gateway.base import metrics
from gateway.base.shortages import SHORTAGES
from gateway.edge.mistakes import Mistake, described
from gateway.model.datasets import ApiError, UnknownDataset
from gateway.model.errors import (
    S3_CODES,
    CatalogUnavailable,
    DiskUnavailable,
    GatewayRefused,
    LarderError,
    OriginBusy,
    OriginUnavailable,
    OutOfResources,
    RateLimited,
    S3Error,
)
from gateway.server.asgi_types import Send
from gateway.store.datasets.layout import Damaged

MEDIA_TYPE = "application/problem+json"
RETRY = {"Retry-After": "1"}
LATER = {"Retry-After": "5"}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as clients see it: status, document and further headers."""

    status: int
    title: str
    code: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The document."""
        own = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        # ASCII: a detail that repeats a lone surrogate has no UTF-8 encoding.
        return json.dumps({**self.extra, **own}).encode()


class FieldProblem(BaseModel):
    """What is wrong with one field of a request."""

    field: str = Field(description="such as items.0.match; empty: the request as a whole", examples=["role"])
    detail: str = Field(examples=["The field role must be viewer, operator or admin."])


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["The dataset is not registered; register it again"])
    status: int = Field(examples=[404])
    code: str = Field(description="for programs; stable", examples=["UnknownDataset"])
    detail: str = Field(
        description="for people: the error, and the remedy",
        examples=["Unknown dataset 'imagenet-train': check the name, or register it again."],
    )
    errors: list[FieldProblem] = Field(
        [],
        description="the sentences of `detail` by field, if it is about fields",
        examples=[[{"field": "role", "detail": "The field role must be viewer, operator or admin."}]],
    )


CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
"""The body of a refusal, for OpenAPI descriptions."""


def refusals(meanings: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of refusals, by status; ``meanings`` lists the codes."""
    return {
        status: {"model": ProblemDocument, "description": meaning, "content": CONTENT}
        for status, meaning in meanings.items()
    }


def problem_of(error: Exception) -> Problem:
    """The problem document of an error. Details of the gateway's internals and of the origin go only to the log."""
    if isinstance(error, S3Error):
        return Problem(error.status, S3_CODES[error.code][1], error.code, error.message, error.headers, error.extra)
    refusal = error if isinstance(error, ApiError) else _as_refusal(error)
    return Problem(refusal.status, refusal.title, refusal.code, refusal.detail, refusal.headers, refusal.extra)


def _as_refusal(error: Exception) -> ApiError:
    """Map any other error to a refusal."""
    match error:
        case CatalogUnavailable():
            what = f"The catalog cannot be reached ({error}); nothing was changed. Gateways continue with their last snapshot."
            return ApiError("ServiceUnavailable", what, headers=LATER)
        case OriginBusy():
            metrics.SHED.labels("origin").inc()
            return ApiError("SlowDown", "All connections to the origin are in use; try again.", headers=RETRY)
        case GatewayRefused():
            what = "The origin refuses the gateway's own request; the operator of the gateway must act, not the caller."
            return ApiError("ServiceUnavailable", what, headers=RETRY)
        case OutOfResources():
            return _exhausted()
        case OriginUnavailable():
            return ApiError("ServiceUnavailable", "The origin cannot be reached; try again.", headers=RETRY)
        case DiskUnavailable():
            what = "is full" if error.reason == "no-space" else "is not available at the moment"
            return ApiError("ServiceUnavailable", f"The gateway's cache disk {what}; try again.", headers=LATER)
        case Damaged():
            return UnknownDataset("asked for")
        case LarderError():
            return ApiError("SlowDown", "The data changed during the request; try again.", headers=RETRY)
    if SHORTAGES.record(error, "answering a request"):
        return _exhausted()
    return ApiError("InternalError", "Internal error; see the gateway's log.")


def _exhausted() -> ApiError:
    metrics.SHED.labels("process").inc()
    return ApiError("SlowDown", "The gateway is out of descriptors or memory; try again.", headers=RETRY)


def invalid_request(mistakes: Iterable[Mistake]) -> ApiError:
    """The refusal of a request that failed pydantic's validation."""
    errors = described(mistakes)
    detail = " ".join(text for _, text in errors)
    return ApiError("InvalidRequest", detail, errors=[{"field": field, "detail": text} for field, text in errors])


def refused_field(field: str, detail: str, code: str = "InvalidRequest") -> ApiError:
    """The refusal of one field's value."""
    return ApiError(code, detail, errors=[{"field": field, "detail": detail}])


def note_refusal(
    status: int, code: str, error: Exception, log: Logger, request: str = "", request_id: str = ""
) -> None:
    """Count and log a refusal. Call it once per refusal sent.

    Args:
        status: of the answer.
        code: of the problem document.
        error: the reason, for the log.
        log: of the edge.
        request: method and path, for the log.
        request_id: for the log.
    """
    if status in (401, 403):
        metrics.AUTH_FAILURES.labels(code).inc()
    if status == 503 and not isinstance(error, RateLimited):
        facts = {"status": status, "code": code, "error": error}
        if request:
            log.warning("%(request)s: %(error)s", {**facts, "request": request, "request_id": request_id})
        else:
            log.warning("%(error)s", facts)


async def send_problem(send: Send, error: Exception, log: Logger) -> None:
    """Answer with an error, over plain ASGI."""
    problem = problem_of(error)
    note_refusal(problem.status, problem.code, error, log)
    body = problem.body
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        *encoded(problem.headers),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers in ASGI's form."""
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
