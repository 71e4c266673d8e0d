"""The only place that renders errors of ``/-/admin``."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gateway.admin.catalog.errors import CatalogUnavailable
from gateway.model.datasets import ApiError
from gateway.model.errors import OriginUnavailable
from gateway.model.problems import MEDIA_TYPE, Problem, invalid_request, told
from gateway.server.problems import counted

_OF_HTTP = {404: "NotFound", 405: "MethodNotAllowed"}
_LATER = {"Retry-After": "5"}

log = logging.getLogger("larder.admin")


def problem_of(error: Exception) -> Problem:
    """What to tell of an error; a mistake of ours is for the log only."""
    if isinstance(error, ApiError):
        return told(error)
    if isinstance(error, CatalogUnavailable):
        return told(
            ApiError(
                "ServiceUnavailable",
                f"The catalog cannot be reached ({error}); nothing was changed. Gateways go on with what they last read of it.",
                headers=_LATER,
            )
        )
    if isinstance(error, OriginUnavailable):
        return told(ApiError("ServiceUnavailable", "The origin cannot be reached; try again.", headers=_LATER))
    if isinstance(error, RequestValidationError):
        return told(invalid_request(error.errors()))
    if isinstance(error, HTTPException) and error.status_code == 400:
        # Nothing of ours raises it: FastAPI does, of a body that is no text.
        return told(ApiError("InvalidRequest", "body: is not JSON in UTF-8."))
    if isinstance(error, HTTPException) and error.status_code in _OF_HTTP:
        return told(ApiError(_OF_HTTP[error.status_code], headers=error.headers))
    return told(ApiError("InternalError", "The gateway made a mistake; its log says which."))


def answer(error: Exception) -> Problem:
    """``problem_of``, counted and logged: to be called once for each refusal that is sent."""
    return counted(problem_of(error), error, log)


def _of_its_type(request: Request, error: Exception) -> Exception:
    """A body that is not read as JSON, because it is not said to be, is wrong in no field of its own."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    mistakes = error.errors() if isinstance(error, RequestValidationError) else ()
    whole = any(each["loc"] == ("body",) and each["type"] != "missing" for each in mistakes)
    if not whole or kind == "application/json" or kind.endswith("+json"):
        return error
    said = f"is {kind[:64]!r}" if kind else "is missing"
    return ApiError("InvalidRequest", f"Content-Type: {said}; send application/json.")


async def _respond(request: Request, error: Exception) -> Response:
    problem = answer(_of_its_type(request, error))
    return Response(problem.body, problem.status, dict(problem.headers), MEDIA_TYPE)


def handle_problems(app: FastAPI, methods_of: Callable[[str], set[str]]) -> None:
    """Have an application answer every error with a problem document.

    Args:
        app: the application.
        methods_of: what a path can be asked; routing itself knows only the first route that has it.
    """

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            error.headers = {"Allow": ", ".join(sorted(methods_of(request.url.path)))}
        return await _respond(request, error)

    kinds = (ApiError, CatalogUnavailable, OriginUnavailable, RequestValidationError, Exception)
    for kind in kinds:
        app.add_exception_handler(kind, _respond)
    app.add_exception_handler(HTTPException, of_http)
