"""What the endpoints work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from gateway.admin.catalog.catalog import Catalog
from gateway.config import Settings


@dataclass(frozen=True, slots=True)
class AdminParts:
    """The catalog, and the configuration below it.

    ``file`` gives the settings of the file as they are now, ``effective`` those with the catalog on top, which are in force.
    """

    catalog: Catalog
    file: Callable[[], Settings]
    effective: Callable[[], Settings]


async def _parts(request: Request) -> AdminParts:
    parts: AdminParts = request.app.state.parts
    return parts


Parts = Annotated[AdminParts, Depends(_parts)]
