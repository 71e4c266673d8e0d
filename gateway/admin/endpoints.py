"""Everything that can be asked under ``/-/admin``."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.admin import audit, credentials, origins, rules, rules_check, tenants

ROUTERS: tuple[APIRouter, ...] = (
    tenants.router,
    credentials.router,
    origins.router,
    rules.router,
    rules_check.router,
    audit.router,
)
