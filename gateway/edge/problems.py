"""Problem documents (RFC 9457): the form of every error under ``/-/``, with a ``code`` for programs.

If S3 has a code for the error, above all for everything about signatures, that one is used. The S3 edge answers with
S3's XML documents instead (``gateway/api/s3/errors.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from logging import Logger
from re import Pattern
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from gateway import metrics
from gateway.model.datasets import ApiError, UnknownDataset
from gateway.model.errors import (
    S3_CODES,
    CatalogUnavailable,
    ClientGone,
    DiskUnavailable,
    LarderError,
    OriginUnavailable,
    RateLimited,
    S3Error,
)
from gateway.server.refusals import Send
from gateway.store.datasets.layout import Damaged

MEDIA_TYPE = "application/problem+json"
RETRY = {"Retry-After": "1"}
LATER = {"Retry-After": "5"}
_OF_HTTP = {404: "NotFound", 405: "MethodNotAllowed"}


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


CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
"""The body of a refusal, for OpenAPI descriptions."""


def refusals(meanings: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of refusals, by status; ``meanings`` lists the codes."""
    return {
        status: {"model": ProblemDocument, "description": meaning, "content": CONTENT}
        for status, meaning in meanings.items()
    }


def problem_of(error: Exception) -> Problem:
    """The problem document of an error. Internal details, and those of the origin, go to the log only."""
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
        case OriginUnavailable():
            return ApiError("ServiceUnavailable", "The origin cannot be reached; try again.", headers=RETRY)
        case DiskUnavailable():
            what = "is full" if error.reason == "no-space" else "is not available at the moment"
            return ApiError("ServiceUnavailable", f"The gateway's cache disk {what}; try again.", headers=LATER)
        case Damaged():
            return UnknownDataset("asked for")
        case RequestValidationError():
            return invalid_request(error.errors())
        case HTTPException(status_code=400):
            # Raised only by FastAPI, for a body that is not text.
            return ApiError("InvalidRequest", "body: is not JSON in UTF-8.")
        case HTTPException() if error.status_code in _OF_HTTP:
            return ApiError(_OF_HTTP[error.status_code], headers=error.headers)
        case LarderError():
            return ApiError("SlowDown", "The data changed during the request; try again.", headers=RETRY)
    return ApiError("InternalError", "Internal error; see the gateway's log.")


def invalid_request(mistakes: Iterable[Mapping[str, Any]]) -> ApiError:
    """The refusal of a request that failed pydantic's validation."""
    return ApiError("InvalidRequest", "; ".join(map(_described, mistakes)))


def _described(error: Mapping[str, Any]) -> str:
    """One validation error: the field and the requirement, without the value or links to pydantic's documentation."""
    if error["type"] == "json_invalid" and len(error["loc"]) == 2:
        return f"body: is not JSON, from character {error['loc'][1]} on"
    place = [str(part) for part in error["loc"] if part not in ("query", "path", "body")]
    unknown = "unknown field" if error["type"] == "extra_forbidden" else str(error["msg"])
    return f"{'.'.join(place) or 'body'}: {unknown.removeprefix('Value error, ')}"


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


def handle_problems(app: FastAPI, log: Logger) -> None:
    """Have an application answer every error with a problem document. Add its endpoints by ``include``."""
    app.state.methods = []

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientGone):
            raise error  # the client is gone
        if isinstance(error, HTTPException) and error.status_code == 405 and (methods := _methods(request)):
            error.headers = {"Allow": ", ".join(sorted(methods))}
        problem = problem_of(_of_its_type(request, error))
        note_refusal(problem.status, problem.code, error, log)
        return Response(problem.body, problem.status, dict(problem.headers), MEDIA_TYPE)

    # Not LarderError itself: a handler would report a client that left as an internal error.
    for kind in (
        ApiError, S3Error, OriginUnavailable, DiskUnavailable, CatalogUnavailable, Damaged, RequestValidationError,
        HTTPException, Exception,
    ):  # fmt: skip
        app.add_exception_handler(kind, respond)


def include(app: FastAPI, router: APIRouter, prefix: str = "") -> None:
    """Add endpoints, and record their methods: routing itself only knows those of the first route of a path."""
    app.include_router(router, prefix=prefix)
    routes = (route for route in router.routes if isinstance(route, APIRoute))
    app.state.methods += [(prefix + route.path, route.methods) for route in routes]


def _methods(request: Request) -> set[str]:
    known: list[tuple[str, set[str]]] = request.app.state.methods
    return {method for path, methods in known if _pattern(path).match(request.url.path) for method in methods}


@cache
def _pattern(path: str) -> Pattern[str]:
    """Compiled for the first wrong method, not at a start: all of them together take 10 ms."""
    return compile_path(path)[0]


def _of_its_type(request: Request, error: Exception) -> Exception:
    """The error for a body that was not parsed as JSON because of its Content-Type, instead of errors about its fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    mistakes = error.errors() if isinstance(error, RequestValidationError) else ()
    whole = any(each["loc"] == ("body",) and each["type"] != "missing" for each in mistakes)
    if not whole or kind == "application/json" or kind.endswith("+json"):
        return error
    said = f"is {kind[:64]!r}" if kind else "is missing"
    return ApiError("InvalidRequest", f"Content-Type: {said}; send application/json.")
