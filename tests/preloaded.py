"""What the fork server of ``tests.forked`` imports, so that no gateway that it forks has to."""

from gateway.imports import imported

for _module in ("gateway.cli", "gateway.commands.serving", "gateway.app"):
    imported(_module)
