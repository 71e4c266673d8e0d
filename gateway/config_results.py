"""The settings of results of pipelines; part of gateway/config.py."""

from __future__ import annotations

from pydantic import Field

from gateway.config_base import Seconds, Section, Size
from gateway.model.results import MOST_BYTES


class ResultSettings(Section):
    """Results of pipelines: elements at a mark, which jobs store and read again."""

    enabled: bool = Field(True, description="store results; without, the pipelines' epochs compute")
    tenant_percent: int = Field(
        50, ge=0, le=100, description="percentage of the fleet's cache that the results of one tenant may take"
    )
    idle: Seconds = Field(
        3600.0,
        gt=0,
        description="how long results keep their space without use; afterwards they leave like plain reads",
    )
    largest: Size = Field(16 * 1024**2, ge=1, le=MOST_BYTES, description="largest element that is stored")
