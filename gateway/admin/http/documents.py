"""What every document of ``/-/admin`` has in common."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateway.edge.problems import refusals

_UNWRITABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and halves of characters, which no encoding has."""


class RequestModel(BaseModel):
    """What a request says: a field that does not exist is refused by its name, and a number is no truth value."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class ResponseModel(BaseModel):
    """What an answer says."""


PROBLEMS = refusals(
    {
        400: "InvalidRequest",
        401: "Unauthorized",
        403: "AdminDisabled, ReadOnlyToken, CrossSite",
        404: "NotFound",
        409: "Conflict",
        412: "PreconditionFailed",
        413: "TooLarge",
        503: "ServiceUnavailable; try again after Retry-After seconds",
    }
)
"""What any address may answer beside what it is for."""


def _printable(text: str) -> str:
    if _UNWRITABLE.search(text):
        raise ValueError("contains a control character, or half of a character")
    return text


Text = Annotated[str, AfterValidator(_printable), Field(max_length=1000)]
"""Free text of people: any character but control characters, up to a thousand; shown as text everywhere."""

Source = Literal["file", "catalog"]
"""Where something is from: the configuration file, where it can be edited, or the catalog, where it is edited here."""

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_@+=][A-Za-z0-9._@+=-]*$")]
"""What can stand in an address as it is."""


def moment(seconds: float) -> str:
    """A time in ISO 8601, from seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
