"""What the fork server of ``tests.forked`` imports, so that no gateway that it forks has to."""

from gateway.imports import imported

_WHEN_SERVING = (
    "aiosqlite",
    "gateway.admin.catalog.upgrading",
    "gateway.admin.endpoints",
    "gateway.origin.chain",
    "gateway.origin.control",
    "gateway.server.protocol",
    "numpy.random",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvloop",
)
"""What a gateway imports after its application."""

for _module in ("gateway.cli", "gateway.commands.serving", "gateway.app", *_WHEN_SERVING):
    imported(_module)
