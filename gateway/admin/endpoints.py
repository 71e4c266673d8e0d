"""The endpoints under ``/-/admin``, as one FastAPI application. ``app.py`` imports this module."""

from __future__ import annotations

import logging
from functools import cache
from types import SimpleNamespace

from fastapi import APIRouter, Depends, FastAPI
from starlette.datastructures import State

from gateway.admin.catalog.fields import PROBLEMS
from gateway.admin.configuration import audit, credentials, origins, rules, rules_check, tenants, tokens
from gateway.admin.fleet import (
    datasets,
    jobs,
    nodes,
    overview,
    pipelines,
    problem_endpoints,
    results,
    streams,
    traffic,
    trends,
)
from gateway.admin.operations import explain, profile_endpoints, purge, requests_live, verifications, warmup_endpoints
from gateway.edge.endpoints import build, include, known_parameters, new_app, share

ROUTERS: tuple[APIRouter, ...] = (
    tenants.TENANTS.router,
    credentials.CREDENTIALS.router,
    origins.ORIGINS.router,
    rules.router,
    rules_check.router,
    tokens.TOKENS.router,
    audit.router,
    overview.router,
    problem_endpoints.router,
    traffic.router,
    trends.router,
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
    # Not a copy: members may be added later.
    return share(_bare(State(vars(state))), _built(prefix))


@cache
def _built(prefix: str) -> FastAPI:
    api = _bare(State())
    for router in ROUTERS:
        include(api, router, prefix)
    return build(api)


def _bare(state: State) -> FastAPI:
    log = logging.getLogger("larder.admin")
    return new_app("Larder: administration", log, state, dependencies=[Depends(known_parameters)], responses=PROBLEMS)
