"""Does an answer that passed the gateway show that a cached object is no longer the current one?

Only a strict difference counts: a missing field is not a difference. Listings have times in milliseconds and headers in seconds,
and stores round in either direction, so times differ if they are more than a second apart.
"""

from __future__ import annotations

from gateway.model.objects import ObjectMeta
from gateway.model.s3.conditions import http_date, quoted
from gateway.model.s3.listings import SeenVersion

_ROUNDING = 1.0


def differs(meta: ObjectMeta, sighting: SeenVersion) -> bool:
    """Whether a store's statement describes an object other than this version."""
    if sighting.gone or (sighting.etag and quoted(sighting.etag) != quoted(meta.etag)):
        return True
    if sighting.size not in (-1, meta.size):
        return True
    modified = http_date(meta.last_modified)
    return sighting.modified is not None and modified is not None and abs(sighting.modified - modified) > _ROUNDING
