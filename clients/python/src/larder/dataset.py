"""What a gateway says of datasets, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A dataset that a gateway knows.

    Args:
        name: given at registration.
        id: SHA-256 over the digests of the items in order, 64 hexadecimal digits: equal content has an equal id everywhere.
        items: how many there are.
        bytes: sum of their lengths, as far as the digest file has them.
        caching: the mode that a reader gets who begins now: ``full``, ``static``, ``chunked`` or ``none``; by the fleet's plan if
            jobs read the dataset, else by its size.
        partitions: into how many contiguous parts the items are cut (Quiver, FAST'20, 5.1).
        units: stripe units of each partition; a chunk is one unit of every partition.
        plan: version of the gateway's decisions about this dataset.
        resident: items in the cache of the node that answered, when it did; in a fleet, each has its share.
    """

    name: str
    id: str
    items: int
    bytes: int = 0
    caching: str = "none"
    partitions: int = 10
    units: int = 10
    plan: int = 1
    resident: int = 0

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DatasetInfo:
        """Read the dataset document of the gateway.

        Raises:
            ValueError: a field is missing or no such thing; the message names it.
        """
        chunks = document.get("chunks")
        if not isinstance(chunks, Mapping):
            raise ValueError(f'"chunks" is {chunks!r}')
        if not _ID.fullmatch(_typed(document, "id", str)):
            raise ValueError(f'"id" is {document["id"]!r}')
        return cls(
            name=_typed(document, "name", str),
            id=document["id"],
            items=_typed(document, "items", int),
            bytes=_typed(document, "bytes", int),
            caching=_typed(document, "caching", str),
            partitions=_typed(chunks, "partitions", int),
            units=_typed(chunks, "units", int),
            plan=_typed(document, "plan", int),
            resident=_typed(document, "resident", int),
        )


@dataclass(frozen=True, slots=True)
class ItemLocation:
    """Where one item lies; no ``offset`` means the object's beginning, no ``length`` to its end."""

    index: int
    bucket: str
    key: str
    offset: int | None
    length: int | None


@dataclass(frozen=True, slots=True)
class Directives:
    """What the gateway asks the readers of a dataset to do.

    Args:
        caching: mode in force; ``chunked`` wants ``prefetch`` of the next chunk. Empty when no gateway was asked.
        chunk: that has most of its items in the cache; -1 for none.
        plan: version of the gateway's decisions.
    """

    caching: str = ""
    chunk: int = -1
    plan: int = 0

    @classmethod
    def from_headers(cls, headers: Message) -> Directives:
        """Read the headers of a batch's answer.

        Raises:
            ValueError: a number is none.
        """
        return cls(
            headers.get("x-larder-caching", ""),
            int(headers.get("x-larder-chunk") or -1),
            int(headers.get("x-larder-plan") or 0),
        )


def check_name(name: str, *, id_too: bool = False) -> str:
    """The name, if datasets may be called so (or it is an id, where that is allowed).

    Raises:
        ValueError: it is not allowed; the message says what is.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"a dataset's name is 1 to 128 of A-Z a-z 0-9 . _ -, not {name!r}")
    if _ID.fullmatch(name) and not id_too:
        raise ValueError(f"{name} looks like the id of a dataset; its name must not")
    return name


def _typed(document: Mapping[str, Any], field: str, kind: type[Any]) -> Any:
    value = document.get(field)
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise ValueError(f'"{field}" is {value!r}')
    return value
