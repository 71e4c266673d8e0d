"""The endpoints under ``/-/admin``, as one FastAPI application. ``app.py`` imports this module."""

from __future__ import annotations

import logging
from operator import attrgetter
from types import SimpleNamespace

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from starlette.datastructures import State

from gateway import __version__
from gateway.admin.configuration import audit, credentials, origins, rules, rules_check, tenants, tokens
from gateway.admin.fleet import datasets, jobs, nodes, overview, pipelines, results, streams, traffic
from gateway.admin.http.documents import PROBLEMS
from gateway.admin.operations import explain, profile_endpoints, purge, requests_live, verifications, warmup_endpoints
from gateway.edge.endpoints import handle_problems, include
from gateway.model.datasets import ApiError

ROUTERS: tuple[APIRouter, ...] = (
    tenants.TENANTS.router,
    credentials.CREDENTIALS.router,
    origins.ORIGINS.router,
    rules.router,
    rules_check.router,
    tokens.TOKENS.router,
    audit.router,
    overview.router,
    traffic.router,
    requests_live.router,
    nodes.router,
    datasets.router,
    jobs.router,
    pipelines.router,
    streams.router,
    results.router,
    warmup_endpoints.router,
    profile_endpoints.router,
    purge.router,
    verifications.router,
    explain.router,
)


def api_of(state: SimpleNamespace, prefix: str) -> FastAPI:
    """The application, at addresses that begin with ``prefix``; its endpoints depend on the members of ``state``."""
    api = FastAPI(
        title="Larder: administration",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=attrgetter("name"),
        servers=[{"url": "/-"}],
        # A redirect would leave "/-" and address a bucket.
        redirect_slashes=False,
        dependencies=[Depends(_known_parameters)],
        responses=PROBLEMS,
    )
    api.state = State(vars(state))  # not a copy: members may be added later
    handle_problems(api, logging.getLogger("larder.admin"))
    for router in ROUTERS:
        include(api, router, prefix)
    return api


async def _known_parameters(request: Request) -> None:
    """Refuse unknown parameters: FastAPI ignores them, so a misspelt filter would have no effect."""
    route = request.scope.get("route")
    assert isinstance(route, APIRoute)
    known = [field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            there = f"known: {', '.join(known)}" if known else "none is allowed"
            raise ApiError("InvalidRequest", f"Unknown parameter {name[:64]!r}; {there}.")
        if given.count(name) > 1:
            raise ApiError("InvalidRequest", f"The parameter {name} is given more than once.")
