"""The base of a configuration's tables, and the tables that other packages use on their own; the rest are in
gateway/base/config.py."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from gateway.model.results import MOST_BYTES
from gateway.model.units import parse_duration, parse_size

Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=2**60)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]
_LONGEST_SOCKET = 107
"""Bytes of a unix socket's path (unix(7))."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _check_socket(path: str) -> str:
    if path and (not path.startswith("/") or len(path.encode()) > _LONGEST_SOCKET):
        raise ValueError(f"must be an absolute path of at most {_LONGEST_SOCKET} bytes")
    return path


SocketPath = Annotated[str, AfterValidator(_check_socket)]


class Section(BaseModel):
    """A table of the configuration file: unknown keys are refused, values cannot change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @field_validator("*")
    @classmethod
    def _printable(cls, value: Any) -> Any:
        if isinstance(value, str) and _CONTROL.search(value):
            raise ValueError("contains a control character")
        return value


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


class TenantLimit(Section):
    """The limits of one tenant through all gateways together; requests beyond them are answered 503 SlowDown."""

    tenant: str = Field(
        min_length=1, description="name of the tenant, as in its credentials; one of the catalog has its limits there"
    )
    requests_per_second: float = Field(0, ge=0, le=1e9, description="requests per second; 0: no limit")
    bytes_per_second: Size = Field(0, description='bytes of answers per second, such as "500MB"; 0: no limit')


class CostSettings(Section):
    """Prices, for the savings shown in the console and for the plan.

    With prices the plan saves money; without them it saves GPU time, and no money is shown. All nodes need the same prices.
    """

    gb_read: float = Field(0, ge=0, le=1e6, description="price of reading a GB (10^9 bytes) from the object store")
    thousand_requests: float = Field(0, ge=0, le=1e6, description="price of a thousand reads at the object store")
    gpu_hour: float = Field(
        0, ge=0, le=1e6, description="price of a GPU for an hour, for the time that jobs wait for data"
    )
    currency: str = Field(
        "USD", min_length=3, max_length=3, pattern="^[A-Z]{3}$", description="of the prices, as in ISO 4217"
    )
