"""The only place that renders errors of ``/-/v1``: problem documents (RFC 9457) with a ``code`` that programs can rely on.

Where S3 has a word for what went wrong, above all for everything about signatures, the code is S3's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from gateway.api.s3.errors import RETRY
from gateway.model.datasets import ApiError, UnknownDataset
from gateway.model.errors import S3_CODES, ClientGone, DiskUnavailable, LarderError, OriginUnavailable, S3Error
from gateway.model.problems import MEDIA_TYPE, Problem, invalid_request, told
from gateway.server.problems import counted, send_document
from gateway.server.refusals import Send
from gateway.store.datasets.layout import Damaged

_OF_HTTP = {404: "NotFound", 405: "MethodNotAllowed"}
_LATER = {"Retry-After": "5"}

log = logging.getLogger("larder.v1")


def problem_of(error: Exception) -> Problem:
    """What to tell of an error. What is wrong inside the gateway, or behind it, is for the log only."""
    if isinstance(error, ApiError):
        return told(error)
    if isinstance(error, S3Error):
        return Problem(error.status, S3_CODES[error.code][1], error.code, error.message, error.headers, error.extra)
    if isinstance(error, OriginUnavailable):
        return problem_of(ApiError("ServiceUnavailable", "The origin cannot be reached; try again.", headers=RETRY))
    if isinstance(error, DiskUnavailable):
        full = error.reason == "no-space"
        what = "is full" if full else "cannot be read or written at the moment"
        return problem_of(
            ApiError("ServiceUnavailable", f"The gateway's cache disk {what}; try again.", headers=_LATER)
        )
    if isinstance(error, Damaged):
        return problem_of(UnknownDataset("asked for"))
    if isinstance(error, RequestValidationError):
        return problem_of(invalid_request(error.errors()))
    if isinstance(error, HTTPException) and error.status_code in _OF_HTTP:
        return problem_of(ApiError(_OF_HTTP[error.status_code], headers=error.headers))
    if isinstance(error, LarderError):
        return problem_of(ApiError("SlowDown", "What was asked for changed meanwhile; try again.", headers=RETRY))
    return problem_of(ApiError("InternalError", "The gateway made a mistake; its log says which."))


def answer(error: Exception) -> Problem:
    """``problem_of``, counted and logged: to be called once for each refusal that is sent."""
    return counted(problem_of(error), error, log)


async def send_problem(send: Send, error: Exception) -> None:
    """Answer with an error, over plain ASGI."""
    await send_document(send, answer(error))


async def respond(request: Request, error: Exception) -> Response:
    """Answer with an error, as an exception handler of FastAPI.

    Raises:
        ClientGone: there is nobody to answer.
    """
    if isinstance(error, ClientGone):
        raise error
    problem = answer(error)
    return Response(problem.body, problem.status, dict(problem.headers), MEDIA_TYPE)


def handle_problems(app: FastAPI, router: APIRouter) -> None:
    """Have an application answer every error of ``/v1`` with a problem document; others' are answered as before.

    Args:
        app: the application.
        router: some of what it has under ``/v1``; to be called with each.
    """
    known: list[APIRouter] | None = getattr(app.state, "v1_routers", None)
    if known is not None:
        known.append(router)
        return
    routers = app.state.v1_routers = [router]
    elsewhere: Any = app.exception_handlers.get(HTTPException, http_exception_handler)

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if not request.url.path.startswith("/v1/"):
            response: Response = await elsewhere(request, error)
            return response
        if error.status_code == 405:
            error.headers = {"Allow": ", ".join(sorted(_methods(routers, request)))}
        return await respond(request, error)

    # Not for LarderError itself: of a client that left while it was answered, a handler would make a mistake of ours.
    for kind in (ApiError, S3Error, OriginUnavailable, DiskUnavailable, Damaged, RequestValidationError, Exception):
        app.add_exception_handler(kind, respond)
    app.add_exception_handler(HTTPException, of_http)


def _methods(routers: Iterable[APIRouter], request: Request) -> set[str]:
    """What the address can be asked; routing itself knows only the first route that has it."""
    return {
        method
        for router in routers
        for route in router.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
