"""Values that endpoints use in addition to their services: the catalog, the configuration, and entity tags.

Nothing here needs FastAPI: services that run in the background use it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.admin.catalog.catalog import Catalog
from gateway.base.config import Settings
from gateway.model.datasets import ApiError

_TAG = re.compile(r'\s*((?:W/)?"[^"]*")\s*(?:,|$)')


@dataclass(frozen=True, slots=True)
class AdminParts:
    """The catalog and the configuration.

    ``file`` returns the settings of the file, ``effective`` those in force, with the catalog on top.
    """

    catalog: Catalog
    file: Callable[[], Settings]
    effective: Callable[[], Settings]


def etag_of(revision: int) -> str:
    """The entity tag of a document whose last change has the number ``revision``."""
    return f'"{revision}"'


def check_if_match(wanted: str | None, etag: str) -> None:
    """Refuse to change a document that has changed since it was read. ``wanted`` is the request's If-Match.

    Raises:
        ApiError: PreconditionFailed.
    """
    if wanted is None or wanted.strip() == "*" or etag in _TAG.findall(wanted):
        return
    raise ApiError("PreconditionFailed", f"It has changed since it was read: its etag is now {etag}. Read it again.")
