"""Datasets in words: what an item's place is, which names are legal, and how ``/-/v1`` names its refusals.

A dataset is an ordered list of items. Items are addressed by index; what an item *is* (its digest) depends on the bytes only and
is shared by everyone who has them, where it *is* (bucket, key, span) is each tenant's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.model.errors import S3_CODES, LarderError

UNKNOWN_LENGTH = 2**64 - 1
"""What ``Content.lengths`` holds for an item whose length the digest file does not say."""
MAX_ITEMS = 100_000_000
"""Items of one dataset: indices are 32 bits wide, and the index of this many can be built in 4 GiB of memory."""

CACHING = ("auto", "full", "static", "chunked", "none")
"""What a client may ask for; all but the first are also what a directive may say."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ID = re.compile(r"[0-9a-f]{64}")

API_CODES: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "AdminDisabled": (403, "The admin addresses are closed"),
        "Conflict": (409, "What is there already does not go together with this"),
        "CrossSite": (403, "The request was made by a page of another site"),
        "IndexOutOfRange": (400, "The dataset has no item of this index"),
        "InvalidDigestFile": (400, "The digest file is not usable"),
        "JobConflict": (409, "A job of this name is registered with another dataset"),
        "LengthRequired": (411, "The request needs a Content-Length"),
        "MethodNotAllowed": (405, "The address does not have this method"),
        "NotFound": (404, "There is nothing at this address"),
        "NotResident": (404, "The cache does not hold this blob"),
        "ReadOnlyToken": (403, "This token may read, and change nothing"),
        "ServiceUnavailable": (503, "Something that is needed for the answer is not available at the moment"),
        "TooLarge": (413, "The request is too large"),
        "Unauthorized": (401, "The request needs a valid token"),
        "UnknownBase": (409, "The part adds to one that is not here; send a whole one"),
        "UnknownDataset": (404, "The dataset is not registered; register it again"),
        "UnknownJob": (404, "The job is not registered, or was silent for too long; register it again"),
        "UnsupportedMediaType": (415, "The body's type is not understood here"),
    }
)
"""Codes of ``/-/v1`` and ``/-/admin`` beside S3's own, with status and title; and S3's whose title speaks of the origin only."""


class Location(NamedTuple):
    """Where one tenant's copy of an item is.

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
    """A request to ``/-/v1`` or ``/-/admin`` cannot be answered as asked.

    Args:
        code: a key of ``API_CODES``, or of ``S3_CODES`` where S3 has a word for it.
        detail: what was wrong and what to do about it.
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
    """Nobody of this tenant has registered it, or it was forgotten: registrations are soft state."""

    def __init__(self, name_or_id: str) -> None:
        super().__init__(
            "UnknownDataset", f"The dataset {name_or_id!r} is not known here: check the name, or register it again."
        )


def is_job_name(text: str) -> bool:
    """Whether a text can name a job."""
    return _NAME.fullmatch(text) is not None


def is_dataset_id(text: str) -> bool:
    """Whether a text has the form of a dataset id: 64 lower-case hex digits."""
    return _ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether a text can name a dataset: and so, as it stands, a folder."""
    # "." and ".." would be other folders, and no HTTP client sends them in a path as they are.
    return bool(_NAME.fullmatch(text)) and not _ID.fullmatch(text.lower()) and text not in (".", "..")


def check_name(name: str) -> None:
    """Refuse what cannot name a dataset.

    Raises:
        ApiError: InvalidRequest, with the rule.
    """
    if not is_name(name):
        raise ApiError(
            "InvalidRequest",
            f"A dataset's name has 1 to 128 characters out of A-Z a-z 0-9 . _ - and is neither 64 hex digits nor a dot or two; "
            f"{name[:140]!r} is not such a name.",
        )
