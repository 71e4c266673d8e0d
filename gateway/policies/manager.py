"""The manager's decision as a function: ``decide(before: Plan, facts: Facts, now: float, settings: ManagerSettings) -> Plan``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.policies.plan import Phase
from gateway.policies.probing import PhaseTotals, ProbeSettings


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What is known of a dataset.

    ``size`` in bytes; ``requested`` a ``CachingMode`` or ``"auto"``; ``override`` is ``"pin"``, ``"never"`` or empty; ``loaded``:
    every node has its part of the chunk that the plan says is being loaded; ``resident_share`` of its items, 0 to 1.
    """

    size: int
    items: int
    requested: str = "auto"
    override: str = ""
    loaded: bool = False
    resident_share: float = 0.0


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of a job: as it registered, and as of its last heartbeat.

    ``upcoming`` and ``epoch_left`` as in ``chunks.JobView``, ``totals`` cumulative per phase, ``joined_at`` on the clock of
    ``now``; ``wants`` is ``"auto"``, ``"on"`` (the cache whatever it gains) or ``"off"``.
    """

    tenant: str
    job: str
    dataset: str
    gpus: int
    upcoming: tuple[int, ...] = ()
    epoch_left: int = 0
    totals: Mapping[Phase, PhaseTotals] = field(default_factory=dict)
    joined_at: float = 0.0
    wants: str = "auto"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a decision is made from.

    ``capacity``: bytes that may be allocated on all READY nodes together, that is, up to their low watermark.

    ``datasets`` by id, ``jobs`` by ``tenant/job``.
    """

    capacity: int
    datasets: Mapping[str, DatasetFacts]
    jobs: Mapping[str, JobFacts]


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """How decisions are made; times in seconds."""

    probe: ProbeSettings = field(default_factory=ProbeSettings)
    force_after: float = 60.0
    """After the first job has finished a chunk, those still in it lose it."""
    hysteresis: float = 1.1
    """How many times what it now brings another use of a dataset's space must bring to take it."""
    assumed_benefit: float = 2.0
    """t_miss / t_hit of a job that was not measured yet."""
    patience: float = 60.0
    """How long the fleet may be smaller (a node restarts) before datasets lose their space."""
