"""The addresses for operators and orchestrators: health, readiness, metrics."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Literal

from fastapi import APIRouter, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway import __version__

Check = Callable[[], Awaitable[str]]
"""Returns what is wrong, or an empty string."""


class Health(BaseModel):
    """Whether the process works at all."""

    status: Literal["ok"] = "ok"
    version: str = Field(default=__version__, examples=["0.1.0"])


class Readiness(BaseModel):
    """Whether to send requests here."""

    ready: bool = Field(examples=[True])
    state: Literal["starting", "ready", "draining"] = Field(examples=["ready"])
    problems: dict[str, str] = Field(
        description="what is impaired while requests are still answered, by part", examples=[{"redis": "not reachable"}]
    )


class Lifecycle:
    """Where the worker is between start and stop."""

    def __init__(self) -> None:
        self.state: Literal["starting", "ready", "draining"] = "starting"


def ops_app(lifecycle: Lifecycle, checks: dict[str, Check], refresh: Callable[[], None]) -> FastAPI:
    """The application under ``/-``; ``refresh`` brings the gauges up to date before they are shown."""
    app = FastAPI(
        title="Larder",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        servers=[{"url": "/-"}],
        # A redirect would lead out of "/-", to a bucket.
        redirect_slashes=False,
        exception_handlers={HTTPException: _problem},
    )
    app.include_router(_router(lifecycle, checks, refresh))
    return app


async def _problem(request: Request, error: Exception) -> JSONResponse:
    """An error of these addresses as a problem document (RFC 9457)."""
    assert isinstance(error, HTTPException)
    content = {"type": "about:blank", "title": error.detail, "status": error.status_code}
    return JSONResponse(content, error.status_code, error.headers, media_type="application/problem+json")


def _router(lifecycle: Lifecycle, checks: dict[str, Check], refresh: Callable[[], None]) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/healthz", summary="Liveness")
    async def healthz() -> Health:
        """Answer as long as the event loop turns; restart the process when this fails."""
        return Health()

    @router.get("/readyz", summary="Readiness", responses={503: {"model": Readiness}})
    async def readyz(response: Response) -> Readiness:
        """Whether to send requests here: not while starting or draining. Impaired parts are named; reads go on without them."""
        problems = {name: problem for name, check in checks.items() if (problem := await check())}
        ready = lifecycle.state == "ready"
        response.status_code = 200 if ready else 503
        return Readiness(ready=ready, state=lifecycle.state, problems=problems)

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        """All workers' metrics in the Prometheus text format."""
        refresh()
        registry = REGISTRY
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
