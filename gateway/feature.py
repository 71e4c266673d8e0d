"""What the root knows about an operators' feature, a folder of gateway/operate.

Its parts are named by their modules, which are imported when they are needed: ``larder-gateway --help`` imports no command, and a
gateway serves before it imports endpoints.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A top-level command: ``add`` of its module declares its arguments; ``usual`` is the default subcommand.

    ``place`` is its place in the list of commands; its hundreds are the group in ``gateway.cli.GROUPS``.
    """

    place: int
    name: str
    module: str
    summary: str
    usual: str = ""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints under ``/-/admin``, the ``router`` of a module. ``place`` is their place in the API's description."""

    place: int
    module: str


@dataclass(frozen=True, slots=True)
class Feature:
    """An operators' feature: its commands, its endpoints, and its loops in a worker.

    ``start`` of the module ``wiring`` makes the latter, from ``gateway.operate.ground.Ground``; a feature may need nothing there.
    ``follows``: the module's ``follow`` makes the follower of the catalog, from ``CatalogGround``.
    """

    commands: tuple[Command, ...] = ()
    endpoints: tuple[Endpoints, ...] = ()
    wiring: str = ""
    follows: bool = False
