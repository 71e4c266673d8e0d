"""The body of ``POST /-/v1/batch``: objects of any bucket, ranges of them, and members of TAR archives."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError, model_validator
from pydantic_core import from_json

from gateway.edge.problems import invalid_request, refused_field
from gateway.model.datasets import ApiError

MOST_ENTRIES = 1024
LONGEST_BODY = 4 * 1024**2
"""Bytes of the longest body."""
_LARGEST = 2**63 - 1


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be UTF-8") from None
    return text


class ManyEntry(BaseModel):
    """One entry of a batch: an object, a range of its bytes, or a member of a TAR archive."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    bucket: Annotated[str, AfterValidator(_encodable)] = Field(min_length=1, max_length=255, examples=["datasets"])
    key: Annotated[str, AfterValidator(_encodable)] = Field(min_length=1, examples=["zarr/c/0/17"])
    start: int | None = Field(
        None, ge=-_LARGEST, le=_LARGEST, description="first byte; negative: so many bytes from the end", examples=[0]
    )
    end: int | None = Field(None, ge=1, le=_LARGEST, description="the byte behind the last one", examples=[65536])
    member: str | None = Field(
        None, min_length=1, description="name of a file in the TAR archive that the object is; ranges are of the file",
        examples=["000017.jpg"],
    )  # fmt: skip

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end is not None and (self.start or 0) < 0:
            raise ValueError("start must be 0 or more beside end; leave end out for bytes from the end")
        if self.end is not None and (self.start or 0) >= self.end:
            raise ValueError("start must be below end")
        return self

    @property
    def ranged(self) -> bool:
        """Whether a part is asked for."""
        return self.start is not None or self.end is not None

    @property
    def header(self) -> str:
        """The value of a Range header for the part; empty for the whole (RFC 9110, section 14.1.2)."""
        if not self.ranged:
            return ""
        start = self.start or 0
        return f"bytes={start}" if start < 0 else f"bytes={start}-{'' if self.end is None else self.end - 1}"

    def span(self, size: int) -> tuple[int, int] | None:
        """First byte and end of the part in an object of ``size`` bytes; ``None`` if it has no bytes there."""
        if not self.ranged:
            return 0, size
        start = self.start or 0
        start = max(0, size + start) if start < 0 else start
        stop = size if self.end is None else min(size, self.end)
        return (start, stop) if start < stop else None


class ManyBody(BaseModel):
    """The body of a batch of keys."""

    model_config = ConfigDict(extra="forbid")

    entries: Annotated[list[ManyEntry], FailFast()] = Field(min_length=1, max_length=MOST_ENTRIES)


def json_of(body: bytes) -> Any:
    """A request's body.

    Raises:
        ApiError: InvalidRequest, naming the place.
    """
    try:
        return from_json(body)
    except ValueError as error:
        raise ApiError("InvalidRequest", f"The body is not JSON ({error}); correct it.") from None


def parse_entries(body: bytes) -> list[ManyEntry]:
    """The entries of a request's body.

    Raises:
        ApiError: InvalidRequest, naming entry and field.
    """
    document = json_of(body)
    if not isinstance(document, dict):
        raise ApiError("InvalidRequest", 'The body must be an object, {"entries": [...]}.')
    given = document.get("entries")
    if isinstance(given, list) and len(given) > MOST_ENTRIES:
        many = f"The field entries must have at most {MOST_ENTRIES} entries, not {len(given)}; send the rest in further requests."
        raise refused_field("entries", many)
    try:
        return ManyBody.model_validate(document).entries
    except ValidationError as error:
        raise invalid_request(error.errors()) from None
