"""Endpoints for operators and orchestrators: health, readiness, metrics."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from enum import Enum
from operator import attrgetter
from typing import Literal, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import BaseModel, Field

from gateway import __version__
from gateway.api.exposition import exposed
from gateway.edge.problems import handle_problems, include
from gateway.engine.operations.counting import WorkersCollector
from gateway.policies.troubles import Trouble
from gateway.server.refusals import Scope

_TAGS: list[str | Enum] = ["operations"]


class Health(BaseModel):
    """The process is alive: its event loop answers."""

    status: Literal["ok"] = "ok"
    version: str = Field(default=__version__, examples=["0.1.0"])


class Readiness(BaseModel):
    """Whether the worker accepts requests, and the problems of its node."""

    ready: bool = Field(examples=[True])
    state: Literal["starting", "ready", "draining"] = Field(examples=["ready"])
    problems: dict[str, str] = Field(
        description="the node's problems by kind; /-/admin/problems adds the remedies",
        examples=[{"redis": "Redis is not reachable; cached objects are checked with the origin."}],
    )


class Lifecycle:
    """The stage of a worker's life: starting, ready, draining."""

    def __init__(self) -> None:
        self.state: Literal["starting", "ready", "draining"] = "starting"

    def ready(self, problems: Iterable[Trouble]) -> bool:
        """Whether the worker is ready, given the problems of its node."""
        return self.state == "ready" and not any(each.unready for each in problems)


class Monitoring(NamedTuple):
    """The sources of readiness and metrics: the worker's lifecycle, its node's problems, the update of the gauges, and whether a
    request has an admin token."""

    lifecycle: Lifecycle
    problems: Callable[[], list[Trouble]]
    refresh: Callable[[], None]
    may_read: Callable[[Scope], bool]


_router = APIRouter(tags=_TAGS)


def ops_app() -> FastAPI:
    """The application under ``/-``; readiness and metrics work after ``add_monitoring``.

    Its addresses precede those of ``/v1``: FastAPI compiles the routes up to the one that is requested, and the first probe
    would wait for all of them.
    """
    app = FastAPI(
        title="Larder",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=attrgetter("name"),
        servers=[{"url": "/-"}],
        # A redirect would leave "/-" and address a bucket.
        redirect_slashes=False,
    )
    handle_problems(app, logging.getLogger("larder.v1"))
    include(app, _router)
    return app


def add_monitoring(
    app: FastAPI,
    lifecycle: Lifecycle,
    problems: Callable[[], list[Trouble]],
    refresh: Callable[[], None],
    may_read: Callable[[Scope], bool] = lambda _: False,
) -> None:
    """Add readiness and metrics to an application made by ``ops_app``; the other arguments are those of `Monitoring`."""
    app.state.monitoring = Monitoring(lifecycle, problems, refresh, may_read)


@_router.get("/healthz", summary="Liveness")
async def show_health() -> Health:
    """Answer while the event loop runs. Restart the process when this fails."""
    return Health()


@_router.get("/readyz", summary="Readiness", responses={503: {"model": Readiness}})
async def show_readiness(request: Request, response: Response) -> Readiness:
    """Accept requests unless the worker is starting or draining. Other problems are listed, and do not stop reads."""
    monitoring: Monitoring = request.app.state.monitoring
    found = monitoring.problems()
    ready = monitoring.lifecycle.ready(found)
    response.status_code = 200 if ready else 503
    problems = {each.kind: each.what for each in found}
    return Readiness(ready=ready, state=monitoring.lifecycle.state, problems=problems)


@_router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def show_metrics(request: Request) -> Response:
    """All workers' metrics in the Prometheus text format, or in OpenMetrics if the client accepts that. There, latencies of
    traced requests have exemplars with the trace's id. Metrics with names of tenants, buckets and origins are shown to requests
    with an admin token only."""
    monitoring: Monitoring = request.app.state.monitoring
    monitoring.refresh()
    registry = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        WorkersCollector(registry)  # type: ignore[no-untyped-call]
    names = monitoring.may_read(request.scope)
    content, media_type = exposed(registry, request.headers.get("accept", ""), names=names)
    return Response(content, media_type=media_type)
