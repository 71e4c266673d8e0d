"""The endpoints under ``/-`` that wait for no data: ``/-/v1`` without its data paths, the pages and the OpenAPI document.

One FastAPI application. ``gateway/app.py`` imports this module by name after the start (``gateway.edge.asgi.LateApp``).
"""

from __future__ import annotations

import logging
from operator import attrgetter

from fastapi import APIRouter, FastAPI

from gateway import __version__
from gateway.admin import pages
from gateway.admin.app import AdminApp
from gateway.admin.openapi import describe_all
from gateway.api.ops import describe_monitoring
from gateway.api.v1 import datasets, fleet, homes, importance, jobs
from gateway.api.v1.identity import Identities
from gateway.api.v1.openapi import describe_data_paths
from gateway.api.v1.pipeline_advice import PipelineAdvice
from gateway.edge.endpoints import handle_problems, include
from gateway.engine.items.registrations import Registrations
from gateway.engine.space.score_exchange import ScoreExchange
from gateway.wiring.operations import WorkerServices

ROUTERS: tuple[APIRouter, ...] = (datasets.router, homes.router, jobs.router, importance.router, fleet.router)


def api_of(admin: AdminApp) -> FastAPI:
    """The application, without the services of its endpoints; its OpenAPI document includes that of ``admin``."""
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
    for router in ROUTERS:
        include(app, router)
    describe_data_paths(app)
    describe_monitoring(app)
    app.include_router(pages.router)
    describe_all(app, lambda: admin.api)
    return app


def serving(ground: WorkerServices, registrations: Registrations, exchange: ScoreExchange) -> FastAPI:
    """The application of one worker; ``exchange`` applies scores."""
    app, settings, management = api_of(ground.admin.app), ground.settings, ground.management
    identities, parts, find = Identities(ground.authenticator), management.parts, registrations.find
    origin, planned, pace = ground.engine.services.origin, management.planned, settings.fleet.heartbeat
    advice = PipelineAdvice(parts.pipelines, parts.scaling, planned)
    job_parts = jobs.JobParts(parts.jobs, parts.plans, planned, find, pace, advice)
    app.state.datasets = datasets.DatasetService(
        identities, registrations, origin, datasets.bounds_of(settings), planned
    )
    app.state.jobs = jobs.JobService(identities, job_parts)
    app.state.importance = importance.ImportanceService(identities, parts.jobs, find, exchange)
    app.state.fleet = fleet.FleetService(identities, ground.fleet.membership, ground.start.local)
    return app
