"""Datasets and directives of a gateway, as values."""

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
    """A registered dataset.

    Args:
        name: given at registration.
        id: SHA-256 over the digests of the items in order, 64 hexadecimal digits: equal content has an equal id everywhere.
        items: number of items.
        bytes: sum of the lengths that the digest file states.
        caching: mode for a reader that begins now: ``full``, ``part`` or ``none``; by the fleet's plan if jobs read the dataset,
        else by its size.
        partitions: equal stretches of the dataset, see ``group`` of `larder.LoaderOptions`.
        units: slices in which the order of an epoch is computed.
        plan: version of the gateway's decisions about this dataset.
        resident: items in the caches of the fleet, at the time of the answer.
        members: items of a sample, which are adjacent; 1 without samples.
        request_payer: whether reads of the items accept the charges of requester-pays buckets.
        listing: the folders, as ``bucket/folder/``, whose listings are answered from recorded ones.
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
    members: int = 1
    request_payer: bool = False
    listing: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """The units that a loader delivers: items, or the samples that they form."""
        return self.items // self.members

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DatasetInfo:
        """Parse the gateway's dataset document.

        Its ``chunks`` are for clients of earlier versions. No order depends on which gateway answers.

        Raises:
            ValueError: a field is missing or has the wrong type; the message names it.
        """
        if not _ID.fullmatch(_typed(document, "id", str)):
            raise ValueError(f'"id" is {document["id"]!r}')
        return cls(
            name=_typed(document, "name", str),
            id=document["id"],
            items=_typed(document, "items", int),
            bytes=_typed(document, "bytes", int),
            caching=_typed(document, "caching", str),
            plan=_typed(document, "plan", int),
            resident=_typed(document, "resident", int),
            members=max(1, _typed({"members": 1, **document}, "members", int)),
            request_payer=document.get("request_payer", False) is True,
            listing=tuple(str(folder) for folder in document.get("listing") or ()),
        )


@dataclass(frozen=True, slots=True)
class MixtureInfo(DatasetInfo):
    """A mixture of datasets; ``items`` are those of an epoch.

    Args:
        parts: the datasets.
        counts: items of an epoch from each.
        names: of the datasets, as the user gave them.
    """

    parts: tuple[DatasetInfo, ...] = ()
    counts: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


def restored_info(values: Mapping[str, Any]) -> DatasetInfo:
    """A description from its ``dataclasses.asdict``, which may have passed through JSON."""
    if "parts" not in values:
        return DatasetInfo(**{**values, "listing": tuple(values.get("listing", ()))})
    parts = tuple(restored_info(part) for part in values["parts"])
    tuples = {name: tuple(values.get(name, ())) for name in ("counts", "names", "listing")}
    return MixtureInfo(**{**values, "parts": parts, **tuples})


@dataclass(frozen=True, slots=True)
class ItemLocation:
    """Location of an item; without ``offset`` from the object's beginning, without ``length`` to its end. ``size``: its bytes, if
    the digest file states them."""

    index: int
    bucket: str
    key: str
    offset: int | None
    length: int | None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Directives:
    """The gateway's instructions for the readers of a dataset.

    Args:
        caching: mode in force. Empty without an answer of a gateway.
        plan: version of the gateway's decisions.
        sharing: other jobs that read the dataset now; -1 from a gateway that makes no offers.
    """

    caching: str = ""
    plan: int = 0
    sharing: int = -1

    @property
    def partly(self) -> bool:
        """Whether only a part of the dataset is held; gateways before 0.2 call that ``static``."""
        return self.caching in ("part", "static")

    @classmethod
    def from_headers(cls, headers: Message) -> Directives:
        """Parse the headers of a batch's answer.

        Raises:
            ValueError: a header is not a number.
        """
        return cls(
            headers.get("x-larder-caching", ""),
            int(headers.get("x-larder-plan") or 0),
            int(headers.get("x-larder-sharing") or -1),
        )


def check_name(name: str, *, id_too: bool = False) -> str:
    """The name, if it is a valid dataset name (or, with ``id_too``, an id).

    Raises:
        ValueError: invalid name; the message has the rule.
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
