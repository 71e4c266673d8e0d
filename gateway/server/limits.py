"""The limits on clients' use of a worker's connections and time; ``[server]`` of the configuration sets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds for clients.

    Attributes:
        connections: kept open at once.
        body_timeout: seconds of waiting for a body in which ``body_timeout * min_rate`` bytes of it must come.
        min_rate: bytes per second, of bodies and of answers; 0: one byte within the time is enough.
    """

    connections: int = 10_000
    body_timeout: float = 30.0
    min_rate: float = 1000.0
