"""FastAPI applications under ``/-`` that answer every error with a problem document (``problems.py``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from logging import Logger
from operator import attrgetter
from re import Pattern
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from gateway import __version__
from gateway.edge.problems import MEDIA_TYPE, invalid_request, note_refusal, problem_of
from gateway.model.datasets import ApiError
from gateway.model.errors import CatalogUnavailable, ClientGone, DiskUnavailable, OriginUnavailable, S3Error
from gateway.store.datasets.layout import Damaged


class _AnyName(PathConvertor):
    """``{name:name}`` in an address: any text. Starlette's ``path`` ends at a line feed, which names of keys may contain."""

    regex = r"[\s\S]*"


register_url_convertor("name", _AnyName())

_OF_HTTP = {404: "NotFound", 405: "MethodNotAllowed"}


def new_app(title: str, log: Logger, state: State | None = None, **options: Any) -> FastAPI:
    """Create an application with this state and these options of FastAPI. Add its endpoints by ``include``."""
    app = FastAPI(
        title=title,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=attrgetter("name"),
        servers=[{"url": "/-"}],
        # A redirect would leave "/-" and address a bucket.
        redirect_slashes=False,
        **options,
    )
    if state is not None:
        app.state = state
    app.state.methods = []
    _handle_problems(app, log)
    return app


def _handle_problems(app: FastAPI, log: Logger) -> None:

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientGone):
            raise error  # the client is gone
        problem = problem_of(_refusal_of(request, error))
        note_refusal(problem.status, problem.code, error, log)
        return Response(problem.body, problem.status, dict(problem.headers), MEDIA_TYPE)

    # Not LarderError itself: its handler would report a client that left as an internal error.
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


def build(app: FastAPI) -> FastAPI:
    """Build the routes of an application: otherwise the first request builds them, in the event loop."""
    for route in app.routes:
        route.matches({"type": "http", "method": "GET", "path": "", "headers": []})
    return app


def share(app: FastAPI, built: FastAPI) -> FastAPI:
    """Add the endpoints of another application, which was created with the same options, without building them again."""
    app.routes.extend(built.routes)
    app.state.methods += built.state.methods
    return app


def of_state(name: str) -> Callable[[Request], Awaitable[Any]]:
    """A dependency: the member ``name`` of the application's state."""

    async def find(request: Request) -> Any:
        return getattr(request.app.state, name)

    return find


async def known_parameters(request: Request) -> None:
    """A dependency that refuses unknown parameters: FastAPI ignores them, so a misspelt filter would have no effect.

    Raises:
        ApiError: InvalidRequest, naming the parameter.
    """
    if not request.query_params:
        return
    route = request.scope.get("route")
    assert isinstance(route, APIRoute)
    known = [field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            there = f"known: {', '.join(known)}" if known else "none is allowed"
            raise ApiError("InvalidRequest", f"Unknown parameter {name[:64]!r}; {there}.")
        if given.count(name) > 1:
            raise ApiError("InvalidRequest", f"The parameter {name} appears more than once.")


def _refusal_of(request: Request, error: Exception) -> Exception:
    """FastAPI's own errors as refusals; any other error unchanged."""
    match error:
        case RequestValidationError():
            return _of_its_type(request, error)
        case HTTPException(status_code=400):
            # Raised only by FastAPI, for a body that is not text.
            return ApiError("InvalidRequest", "The body is not JSON in UTF-8; correct it.")
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
    """Compiled at the first wrong method, not at the start: all patterns together take 10 ms."""
    return compile_path(path)[0]


def _of_its_type(request: Request, error: RequestValidationError) -> ApiError:
    """The refusal of an invalid request. If the body was not parsed as JSON, it names the Content-Type instead of fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    mistakes = error.errors()
    whole = any(mistake["loc"] == ("body",) and mistake["type"] != "missing" for mistake in mistakes)
    if not whole or kind == "application/json" or kind.endswith("+json"):
        return invalid_request(mistakes)
    said = f"is {kind[:64]!r}" if kind else "is missing"
    return ApiError("InvalidRequest", f"The Content-Type {said}; send application/json.")
