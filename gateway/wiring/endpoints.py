"""The endpoints under ``/-`` that wait for no data: ``/-/v1`` without its data paths, the pages and the OpenAPI document.

One FastAPI application. ``gateway/app.py`` imports this module by name after the start (``gateway.edge.asgi.LateApp``).
"""

from __future__ import annotations

import logging
from functools import cache

from fastapi import APIRouter, FastAPI

from gateway.admin import pages
from gateway.admin.app import AdminApp
from gateway.admin.openapi import describe_all
from gateway.api.ops import with_monitoring
from gateway.api.v1 import datasets, fleet, homes, importance, jobs
from gateway.api.v1.openapi import with_data_paths
from gateway.edge.endpoints import build, include, new_app, share
from gateway.fleet.nodes.held_elsewhere import HeldElsewhere
from gateway.wiring.datasets import DatasetEdge
from gateway.wiring.operations import WorkerServices

ROUTERS: tuple[APIRouter, ...] = (datasets.router, homes.router, jobs.router, importance.router, fleet.router)


def api_of(admin: AdminApp) -> FastAPI:
    """The application, without the services of its endpoints; its OpenAPI document includes that of ``admin``."""
    app = share(_bare(), _built())
    describe_all(app, lambda: admin.api, with_data_paths, with_monitoring)
    return app


@cache
def _built() -> FastAPI:
    app = _bare()
    for router in ROUTERS:
        include(app, router)
    app.include_router(pages.router)
    return build(app)


def _bare() -> FastAPI:
    return new_app("Larder", logging.getLogger("larder.v1"))


def serving(ground: WorkerServices, served: DatasetEdge) -> FastAPI:
    """The application of one worker."""
    registrations = served.registrations
    app, settings, management = api_of(ground.admin.app), ground.settings, ground.management
    parts, planned, find = management.parts, management.planned, registrations.find
    state = app.state
    state.identities = served.identities
    state.datasets = datasets.DatasetService(
        registrations,
        ground.engine.services.origin,
        datasets.bounds_of(settings),
        planned,
        HeldElsewhere(parts.reports, management.membership.me),
    )
    state.jobs = jobs.JobService(
        jobs.JobParts(
            parts.jobs,
            parts.plans,
            parts.pipelines,
            planned,
            find,
            settings.fleet.heartbeat,
            management.overrides,
        )
    )
    state.importance = importance.ImportanceService(parts.jobs, find, served.exchange)
    state.membership, state.local = ground.fleet.membership, ground.start.local
    return app
