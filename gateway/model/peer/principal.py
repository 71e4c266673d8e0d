"""The principal on whose behalf a node asks another: a tenant, and the keys that sign its requests to the origin.

The asking node has verified the caller and checked its allow-list. No secret is sent: each node has the keys in its own
configuration.
"""

from __future__ import annotations

import json
from functools import lru_cache

from gateway.model.keys import OriginIdentity, Principal

PRINCIPAL = "x-larder-principal"
_FIELDS = ("tenant", "origin", "access_key_id")
_PAYS = "pays"
"""A further field, true for a principal who accepts the charges of requester-pays buckets."""
_KEPT = 1024
"""Principals whose header is cached, in each direction; every request has it."""


@lru_cache(maxsize=_KEPT)
def principal_header(tenant: str, identity: OriginIdentity) -> tuple[str, str]:
    """The header that names the principal; ASCII, whatever the names are."""
    values = (tenant, identity.origin, identity.access_key_id)
    pays = {_PAYS: True} if identity.pays else {}
    return PRINCIPAL, json.dumps(dict(zip(_FIELDS, values, strict=True)) | pays)


@lru_cache(maxsize=_KEPT)
def read_principal(text: str) -> Principal:
    """Parse the header's value. It does not include the client's access key of the gateway, which is not needed.

    Raises:
        ValueError: the value is malformed; the message describes the format.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    pays = isinstance(document, dict) and document.pop(_PAYS, False)
    if (
        not isinstance(document, dict)
        or not isinstance(pays, bool)
        or sorted(document) != sorted(_FIELDS)
        or not all(isinstance(v, str) for v in document.values())
    ):
        raise ValueError(f'{PRINCIPAL} must be JSON with the strings "tenant", "origin" and "access_key_id"')
    identity = OriginIdentity(document["origin"], document["access_key_id"], pays)
    return Principal(identity.access_key_id, document["tenant"], identity)
