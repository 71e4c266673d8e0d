"""Imports for the fork server of ``rig.forked``, so that forked gateways need not repeat them."""

import gc
from types import SimpleNamespace

from gateway.base.config_catalog import AdminSettings
from gateway.base.imports import imported
from gateway.operate.features import FEATURES

_WHEN_SERVING = (
    "_strptime",
    "aiosqlite",
    "anyio._backends._asyncio",
    "encodings.ascii",
    "gateway.admin.catalog.sqlite",
    "gateway.admin.catalog.upgrading",
    "gateway.admin.endpoints",
    "gateway.local.starting",
    "gateway.fleet.redis.background",
    "gateway.fleet.redis.embedded",
    "gateway.origin.chain",
    "gateway.origin.control",
    "gateway.origin.trial",
    "gateway.server.protocol",
    "gateway.wiring.endpoints",
    "numpy.random",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "sqlalchemy.ext.asyncio",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvloop",
)
"""Modules that a gateway imports after its application."""

for _module in ("gateway.cli", "gateway.local.serving", "gateway.app", *_WHEN_SERVING):
    imported(_module)

# The routes of both applications, which a gateway builds after its start.
_app = imported("gateway.admin.app")
imported("gateway.admin.endpoints").api_of(SimpleNamespace(), imported("gateway.admin.http.roles").PREFIX, FEATURES)
imported("gateway.wiring.endpoints").api_of(
    _app.AdminApp(imported("gateway.admin.http.tokens").Tokens(AdminSettings()), None, FEATURES)
)

# A forked gateway would scan all this for garbage when it is ready, and copy the pages.
gc.freeze()
