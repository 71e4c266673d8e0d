"""Wires the place where uploads wait until their length or checksum is known."""

from __future__ import annotations

from pathlib import Path

from gateway.api.s3.forward import Spooling
from gateway.api.s3.spool import SpoolPlace
from gateway.base.config import Settings
from gateway.policies.shares import Shares
from gateway.store.store import Store


def spooling(settings: Settings, store: Store) -> Spooling:
    """Where uploads wait: beside the cache, or elsewhere while that disk is not in use."""
    room = Shares(settings.spool)
    here = SpoolPlace(Path(settings.cache.dir) / "tmp", store.bounded, room)
    elsewhere = SpoolPlace(None, room=room)
    return Spooling(lambda: here if store.usable else elsewhere, settings.server.max_spool)
