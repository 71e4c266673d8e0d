"""The holder charged for a request's limited resources: places, connections to an origin, memory, space for uploads.

The holder is a context variable. A request's task sets it when the caller is known, and the tasks that it starts inherit it.
A parameter would have to pass through every function between an edge and the connections of an origin.
"""

from __future__ import annotations

from contextvars import ContextVar

Holder = str | None
"""A tenant's name, ``OWN``, or ``None`` for requests without a key."""
OWN = ""
"""The gateway's own work, and that of other nodes."""
HOLDER: ContextVar[Holder] = ContextVar("larder.holder", default=OWN)
