"""The settings of results of pipelines; part of gateway/config.py."""

from __future__ import annotations

from pydantic import Field

from gateway.config_base import Section, Size
from gateway.model.results import MOST_BYTES


class ResultSettings(Section):
    """Results of pipelines: elements at a mark, which jobs store and read again."""

    enabled: bool = Field(True, description="store results; without, the pipelines' epochs compute")
    largest: Size = Field(16 * 1024**2, ge=1, le=MOST_BYTES, description="largest element that is stored")
