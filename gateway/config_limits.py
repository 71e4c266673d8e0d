"""The settings of tenants' limits; part of gateway/config.py."""

from __future__ import annotations

from pydantic import Field

from gateway.config_base import Section, Size


class TenantLimit(Section):
    """The limits of one tenant through all gateways together; requests beyond them are answered 503 SlowDown."""

    tenant: str = Field(min_length=1, description="name of the tenant, as in its credentials")
    requests_per_second: float = Field(0, ge=0, le=1e9, description="requests per second; 0: no limit")
    bytes_per_second: Size = Field(0, description='bytes of answers per second, such as "500MB"; 0: no limit')
