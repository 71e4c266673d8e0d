"""The endpoints under ``/-/admin``, as one FastAPI application. ``app.py`` imports this module."""

from __future__ import annotations

import logging
from functools import cache
from operator import itemgetter
from types import SimpleNamespace

from fastapi import APIRouter, Depends, FastAPI
from starlette.datastructures import State

from gateway.admin.catalog.fields import PROBLEMS
from gateway.admin.configuration import audit, credentials, origins, rules, rules_check, tenants, tokens
from gateway.admin.fleet import (
    datasets,
    jobs,
    nodes,
    pipelines,
    results,
    streams,
    what_if,
)
from gateway.base.imports import imported
from gateway.edge.endpoints import build, include, known_parameters, new_app, share
from gateway.feature import Feature

_CORE: tuple[tuple[int, APIRouter], ...] = (
    (10, tenants.TENANTS.router),
    (20, credentials.CREDENTIALS.router),
    (30, origins.ORIGINS.router),
    (40, rules.router),
    (50, rules_check.router),
    (60, tokens.TOKENS.router),
    (70, audit.router),
    (130, nodes.router),
    (140, datasets.router),
    (150, jobs.router),
    (155, what_if.router),
    (160, pipelines.router),
    (170, streams.router),
    (180, results.router),
)
"""Endpoints that belong to no feature, by their place in the description."""


def routers(features: tuple[Feature, ...]) -> list[APIRouter]:
    """All endpoints, in the order of the description."""
    added = [
        (endpoint.place, imported(endpoint.module).router) for feature in features for endpoint in feature.endpoints
    ]
    return [router for _, router in sorted([*_CORE, *added], key=itemgetter(0))]


def api_of(state: SimpleNamespace, prefix: str, features: tuple[Feature, ...]) -> FastAPI:
    """The application, at addresses that begin with ``prefix``; its endpoints depend on the members of ``state``."""
    # Not a copy: members may be added later.
    return share(_bare(State(vars(state))), _built(prefix, features))


@cache
def _built(prefix: str, features: tuple[Feature, ...]) -> FastAPI:
    api = _bare(State())
    for router in routers(features):
        include(api, router, prefix)
    return build(api)


def _bare(state: State) -> FastAPI:
    log = logging.getLogger("larder.admin")
    return new_app("Larder: administration", log, state, dependencies=[Depends(known_parameters)], responses=PROBLEMS)
