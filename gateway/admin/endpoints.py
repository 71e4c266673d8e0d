"""Everything that can be asked under ``/-/admin``."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.admin import (
    audit,
    credentials,
    datasets,
    explain,
    jobs,
    nodes,
    origins,
    overview,
    purge,
    rules,
    rules_check,
    tenants,
    verifications,
    warmup_endpoints,
)

ROUTERS: tuple[APIRouter, ...] = (
    tenants.TENANTS.router,
    credentials.CREDENTIALS.router,
    origins.ORIGINS.router,
    rules.router,
    rules_check.router,
    audit.router,
    overview.router,
    nodes.router,
    datasets.router,
    jobs.router,
    warmup_endpoints.router,
    purge.router,
    verifications.router,
    explain.router,
)
