"""Common to the tables of a configuration."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

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
