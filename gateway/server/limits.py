"""The limits on clients' use of a worker's connections and time, set by ``[server]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds for clients.

    Attributes:
        connections: maximum number of open connections.
        body_timeout: seconds of waiting for a body, within which ``body_timeout * min_rate`` bytes must arrive.
        min_rate: bytes per second, of bodies and of answers; 0: one byte within that time suffices.
    """

    connections: int = 10_000
    body_timeout: float = 30.0
    min_rate: float = 1000.0
