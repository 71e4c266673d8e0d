"""What can go wrong with the catalog."""

from __future__ import annotations

from gateway.model.errors import LarderError


class CatalogUnavailable(LarderError):
    """The catalog cannot be read or written at the moment; the message says what is wrong, without secrets."""


class CatalogUnusable(CatalogUnavailable):
    """The database answers, but not with this catalog: tables are missing, of another version, or closed to this user."""
