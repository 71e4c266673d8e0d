"""FastAPI applications under ``/-`` that answer every error with a problem document (``problems.py``)."""

from __future__ import annotations

from functools import cache
from logging import Logger
from re import Pattern

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from gateway.edge.problems import MEDIA_TYPE, invalid_request, note_refusal, problem_of
from gateway.model.datasets import ApiError
from gateway.model.errors import CatalogUnavailable, ClientGone, DiskUnavailable, OriginUnavailable, S3Error
from gateway.store.datasets.layout import Damaged

_OF_HTTP = {404: "NotFound", 405: "MethodNotAllowed"}


def handle_problems(app: FastAPI, log: Logger) -> None:
    """Have an application answer every error with a problem document. Add its endpoints by ``include``."""
    app.state.methods = []

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientGone):
            raise error  # the client is gone
        problem = problem_of(_refusal_of(request, error))
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


def _refusal_of(request: Request, error: Exception) -> Exception:
    """FastAPI's own errors as refusals; any other error as it is."""
    match error:
        case RequestValidationError():
            return _of_its_type(request, error)
        case HTTPException(status_code=400):
            # Raised only by FastAPI, for a body that is not text.
            return ApiError("InvalidRequest", "body: is not JSON in UTF-8.")
        case HTTPException() if error.status_code in _OF_HTTP:
            methods = _methods(request) if error.status_code == 405 else ()
            headers = {"Allow": ", ".join(sorted(methods))} if methods else error.headers
            return ApiError(_OF_HTTP[error.status_code], headers=headers)
    return error


def _methods(request: Request) -> set[str]:
    known: list[tuple[str, set[str]]] = request.app.state.methods
    return {method for path, methods in known if _pattern(path).match(request.url.path) for method in methods}


@cache
def _pattern(path: str) -> Pattern[str]:
    """Compiled for the first wrong method, not at a start: all of them together take 10 ms."""
    return compile_path(path)[0]


def _of_its_type(request: Request, error: RequestValidationError) -> ApiError:
    """The refusal of an invalid request; of a body that was not parsed as JSON, by its Content-Type instead of its fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    mistakes = error.errors()
    whole = any(each["loc"] == ("body",) and each["type"] != "missing" for each in mistakes)
    if not whole or kind == "application/json" or kind.endswith("+json"):
        return invalid_request(mistakes)
    said = f"is {kind[:64]!r}" if kind else "is missing"
    return ApiError("InvalidRequest", f"Content-Type: {said}; send application/json.")
