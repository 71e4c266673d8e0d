"""Base classes and field types of the documents of ``/-/admin``."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from gateway.edge.mistakes import NAME
from gateway.edge.problems import refusals
from gateway.model.keys import is_bucket_name

_UNWRITABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and lone surrogates, which no encoding can represent."""


class RequestModel(BaseModel):
    """A request. Unknown fields are refused by name, and types are not coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


PROBLEMS = refusals(
    {
        400: "InvalidRequest",
        401: "Unauthorized",
        403: "AdminDisabled, ReadOnlyToken, RoleRequired, CrossSite",
        404: "NotFound",
        409: "Conflict",
        412: "PreconditionFailed",
        413: "TooLarge",
        503: "ServiceUnavailable; try again after Retry-After seconds",
    }
)
"""The errors that any endpoint may return."""


def _printable(text: str) -> str:
    if _UNWRITABLE.search(text):
        raise ValueError("must not contain a control character or a lone surrogate")
    return text


def _printable_secret(secret: SecretStr) -> SecretStr:
    _printable(secret.get_secret_value())
    return secret


Text = Annotated[str, AfterValidator(_printable), Field(max_length=1000)]
"""Free text of up to a thousand characters, without control characters."""

Secret = Annotated[SecretStr, AfterValidator(_printable_secret)]
"""A secret, without control characters."""


def _ascii(text: str) -> str:
    if not text.isascii():
        raise ValueError("must be ASCII: it is in a header of every request to the origin")
    return text


def _ascii_secret(secret: SecretStr) -> SecretStr:
    _ascii(secret.get_secret_value())
    return secret


HeaderText = Annotated[Text, AfterValidator(_ascii)]
HeaderSecret = Annotated[Secret, AfterValidator(_ascii_secret), Field(max_length=8192)]

Source = Literal["file", "catalog"]
"""The home of a record: the configuration file, or the catalog, which this API edits."""

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME)]
"""A name that needs no escaping in a URL."""


def _a_bucket(text: str) -> str:
    if not is_bucket_name(text):
        raise ValueError(
            'must be the name of a bucket: letters, digits and . _ -, without "..", "." or "-" at its begin'
        )
    return text


Bucket = Annotated[str, AfterValidator(_a_bucket), Field(min_length=1, max_length=255)]
"""The name of a bucket."""
Prefix = Annotated[str, Field(max_length=1024)]
"""A key prefix; any characters are allowed."""
Key = Annotated[str, Field(min_length=1, max_length=1024)]
"""The key of an object; any characters are allowed."""
