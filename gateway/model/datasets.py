"""Vocabulary of datasets: locations of items, valid names, and the error codes of ``/-/v1``.

A dataset is an ordered list of items, addressed by index. The digest of an item depends only on its bytes and is common to
everyone who has them; its location (bucket, key, span) is each tenant's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.model.errors import S3_CODES, LarderError

UNKNOWN_LENGTH = 2**64 - 1
"""The value in ``Content.lengths`` for an item whose length is not in the digest file."""
MAX_ITEMS = 100_000_000
"""The most items of one dataset: indices have 32 bits, and the index of so many items can be built in 4 GiB of memory."""

MODES = ("auto", "full", "part", "none")
"""Modes that a client may request; all but the first are also values of directives."""
CACHING = (*MODES, "static", "chunked")
"""The modes that registrations may name, including the names that ``part`` had in earlier versions."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ID = re.compile(r"[0-9a-f]{64}")

API_CODES: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "AdminDisabled": (403, "The admin API is disabled"),
        "Conflict": (409, "The request conflicts with the current state"),
        "CrossSite": (403, "The request comes from a page of another site"),
        "IndexOutOfRange": (400, "The dataset has no item with this index"),
        "InvalidDigestFile": (400, "The digest file is invalid"),
        "JobConflict": (409, "A job of this name is registered with another dataset"),
        "LengthRequired": (411, "The request needs a Content-Length"),
        "MethodNotAllowed": (405, "The method is not allowed for this address"),
        "NotFound": (404, "Unknown address"),
        "NotImplemented": (501, "This gateway lacks a part that the request needs"),
        "NotResident": (404, "The blob is not in the cache"),
        "ReadOnlyToken": (403, "This token allows reading only"),
        "RoleRequired": (403, "The role of this token does not allow this"),
        "ServiceUnavailable": (503, "A required service is unavailable"),
        "TooLarge": (413, "The request is too large"),
        "Unauthorized": (401, "The request needs a valid token"),
        "UnknownBase": (409, "The part adds to one that is not here; send a whole one"),
        "UnknownDataset": (404, "The dataset is not registered; register it again"),
        "UnknownJob": (404, "The job is not registered, or was silent for too long; register it again"),
        "UnsupportedMediaType": (415, "The content type of the body is not supported"),
    }
)
"""Codes of ``/-/v1`` and ``/-/admin`` besides S3's, with status and title; some redefine an S3 code with a broader title."""


class Location(NamedTuple):
    """The location of one tenant's copy of an item.

    ``offset`` in bytes, ``None`` for the start of the object; ``length`` in bytes, ``None`` for up to the object's end.
    """

    bucket: str
    key: str
    offset: int | None
    length: int | None

    @property
    def path(self) -> str:
        """``bucket/key``, the form that allow-lists are matched against."""
        return f"{self.bucket}/{self.key}"


class ApiError(LarderError):
    """A request to ``/-/v1`` or ``/-/admin`` is refused.

    Args:
        code: a key of ``API_CODES``, or of ``S3_CODES`` if S3 has a code for the case.
        detail: the problem and the remedy.
        headers: further response headers (``Retry-After``, ...).
        extra: further members of the problem document (``index``, ...).
    """

    def __init__(self, code: str, detail: str = "", *, headers: Mapping[str, str] | None = None, **extra: Any) -> None:
        self.status, self.title = API_CODES.get(code) or S3_CODES[code]
        self.code = code
        self.detail = detail or self.title
        self.headers = dict(headers or {})
        self.extra = extra
        super().__init__(f"{code}: {self.detail}")


class UnknownDataset(ApiError):
    """The tenant has not registered the dataset, or the registration was lost: registrations are soft state."""

    def __init__(self, name_or_id: str) -> None:
        super().__init__("UnknownDataset", f"Unknown dataset {name_or_id!r}: check the name, or register it again.")


def is_job_name(text: str) -> bool:
    """Whether a text is a valid job name."""
    return _NAME.fullmatch(text) is not None


def is_dataset_id(text: str) -> bool:
    """Whether a text has the form of a dataset id: 64 lower-case hex digits."""
    return _ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether a text is a valid dataset name, and so a safe folder name."""
    # "." and ".." are special in paths, and HTTP clients normalise them away.
    return bool(_NAME.fullmatch(text)) and not _ID.fullmatch(text.lower()) and text not in (".", "..")


def check_name(name: str) -> None:
    """Refuse an invalid dataset name.

    Raises:
        ApiError: InvalidRequest, with the rule.
    """
    if not is_name(name):
        raise ApiError(
            "InvalidRequest",
            f"A dataset's name has 1 to 128 characters out of A-Z a-z 0-9 . _ - and is neither 64 hex digits nor a dot or two; "
            f"{name[:140]!r} is not such a name.",
        )
