"""Problem documents (RFC 9457): how every error under ``/-/`` is answered, with a ``code`` that programs can rely on.

Where S3 has a word for what went wrong, above all for everything about signatures, the code is S3's. The S3 edge answers with
S3's XML documents instead (``gateway/api/s3/errors.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
        # In ASCII: a detail that repeats half of a surrogate pair has no encoding.
        return json.dumps({**self.extra, **own}).encode()


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["The dataset is not registered; register it again"])
    status: int = Field(examples=[404])
    code: str = Field(description="for programs; it does not change", examples=["UnknownDataset"])
    detail: str = Field(
        description="for people: what was wrong, and what to do about it",
        examples=["The dataset 'imagenet-train' is not known here: check the name, or register it again."],
    )


CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
"""The body of a refusal, as descriptions have it."""


def refusals(meanings: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """The description of refusals, by status; ``meanings`` gives the codes."""
    return {
        status: {"model": ProblemDocument, "description": meaning, "content": CONTENT}
        for status, meaning in meanings.items()
    }


def problem_of(error: Exception) -> Problem:
    """The problem that an error is. What is wrong inside the gateway, or behind it, is for the log only."""
    if isinstance(error, S3Error):
        return Problem(error.status, S3_CODES[error.code][1], error.code, error.message, error.headers, error.extra)
    refusal = error if isinstance(error, ApiError) else _as_refusal(error)
    return Problem(refusal.status, refusal.title, refusal.code, refusal.detail, refusal.headers, refusal.extra)


def _as_refusal(error: Exception) -> ApiError:
    """Any other error in the words of ``/-/``."""
    match error:
        case CatalogUnavailable():
            what = f"The catalog cannot be reached ({error}); nothing was changed. Gateways go on with what they last read of it."
            return ApiError("ServiceUnavailable", what, headers=LATER)
        case OriginUnavailable():
            return ApiError("ServiceUnavailable", "The origin cannot be reached; try again.", headers=RETRY)
        case DiskUnavailable():
            what = "is full" if error.reason == "no-space" else "cannot be read or written at the moment"
            return ApiError("ServiceUnavailable", f"The gateway's cache disk {what}; try again.", headers=LATER)
        case Damaged():
            return UnknownDataset("asked for")
        case RequestValidationError():
            return invalid_request(error.errors())
        case HTTPException(status_code=400):
            # Nothing of ours raises it: FastAPI does, of a body that is no text.
            return ApiError("InvalidRequest", "body: is not JSON in UTF-8.")
        case HTTPException() if error.status_code in _OF_HTTP:
            return ApiError(_OF_HTTP[error.status_code], headers=error.headers)
        case LarderError():
            return ApiError("SlowDown", "The data changed during the request; try again.", headers=RETRY)
    return ApiError("InternalError", "Internal error; see the gateway's log.")


def invalid_request(mistakes: Iterable[Mapping[str, Any]]) -> ApiError:
    """The refusal of a request in which pydantic found mistakes."""
    return ApiError("InvalidRequest", "; ".join(map(_described, mistakes)))


def _described(error: Mapping[str, Any]) -> str:
    """One mistake of a request: where, and what is wanted there; never the value, nor where pydantic explains itself."""
    if error["type"] == "json_invalid" and len(error["loc"]) == 2:
        return f"body: is not JSON, from character {error['loc'][1]} on"
    place = [str(part) for part in error["loc"] if part not in ("query", "path", "body")]
    unknown = "there is no such field" if error["type"] == "extra_forbidden" else str(error["msg"])
    return f"{'.'.join(place) or 'body'}: {unknown.removeprefix('Value error, ')}"


def note_refusal(status: int, code: str, error: Exception, log: Logger, about: str = "", **extra: str) -> None:
    """Count and log a refusal; to be called once for each that is sent.

    Args:
        status: of the answer.
        code: of the problem.
        error: why, for the log.
        log: of the edge.
        about: what was asked, for the log.
        extra: further fields of the log line.
    """
    if status in (401, 403):
        metrics.AUTH_FAILURES.labels(code).inc()
    if status == 503:
        log.warning("%s%s", about, error, extra=extra)


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
    """Headers as ASGI has them."""
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]


def handle_problems(app: FastAPI, log: Logger) -> None:
    """Have an application answer every error with a problem document. Its endpoints come by ``include``."""
    app.state.methods = []

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientGone):
            raise error  # nobody is left to answer
        if isinstance(error, HTTPException) and error.status_code == 405 and (methods := _methods(request)):
            error.headers = {"Allow": ", ".join(sorted(methods))}
        problem = problem_of(_of_its_type(request, error))
        note_refusal(problem.status, problem.code, error, log)
        return Response(problem.body, problem.status, dict(problem.headers), MEDIA_TYPE)

    # Not for LarderError itself: of a client that left while it was answered, a handler would make a mistake of ours.
    for kind in (
        ApiError, S3Error, OriginUnavailable, DiskUnavailable, CatalogUnavailable, Damaged, RequestValidationError,
        HTTPException, Exception,
    ):  # fmt: skip
        app.add_exception_handler(kind, respond)


def include(app: FastAPI, router: APIRouter, prefix: str = "") -> None:
    """Add endpoints, and note their methods: routing itself knows only those of the first route that has a path."""
    app.include_router(router, prefix=prefix)
    routes = (route for route in router.routes if isinstance(route, APIRoute))
    app.state.methods += [(compile_path(prefix + route.path)[0], route.methods) for route in routes]


def _methods(request: Request) -> set[str]:
    known: list[tuple[Pattern[str], set[str]]] = request.app.state.methods
    return {method for pattern, methods in known if pattern.match(request.url.path) for method in methods}


def _of_its_type(request: Request, error: Exception) -> Exception:
    """A body that is not read as JSON, because its Content-Type is another, is wrong in no field of its own."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    mistakes = error.errors() if isinstance(error, RequestValidationError) else ()
    whole = any(each["loc"] == ("body",) and each["type"] != "missing" for each in mistakes)
    if not whole or kind == "application/json" or kind.endswith("+json"):
        return error
    said = f"is {kind[:64]!r}" if kind else "is missing"
    return ApiError("InvalidRequest", f"Content-Type: {said}; send application/json.")
