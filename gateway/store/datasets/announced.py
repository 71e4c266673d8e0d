"""The registrations of this node that were announced to the fleet: a small file shared by its workers.

If the fleet's table lacks a registration, it was either removed there or is new here. The table cannot tell which, so each node
records the entries it has seen there, and under which *epoch*: a name that changes when Redis loses the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.store.datasets.folders import LISTING, PAYS, REGISTRATION, Folders, read_document, write_document

_FILE = "announced.json"
Name = tuple[str, str]
"""Tenant and name."""


class AnnouncedRegistration(NamedTuple):
    """A registration in the fleet's table; entries of one name are equal if their ``tag`` and ``stamp`` are."""

    tag: str
    stamp: str

    @property
    def id(self) -> str:
        """The dataset's id."""
        return self.tag.partition("-")[0]

    @property
    def records_listings(self) -> bool:
        """Whether listings of its folders are recorded."""
        return records_listings(self.stamp)


def known_of(document: Mapping[str, Any]) -> AnnouncedRegistration:
    """The identity of a registration: the name of its locations file, which is unique and the same on all nodes."""
    stamp = f"{document.get('locations')}/{document.get('caching')}"
    stamp += "".join(f"/{term}" for term in (PAYS, LISTING) if document.get(term))
    return AnnouncedRegistration(str(document.get("content")), stamp)


def records_listings(stamp: str) -> bool:
    """Whether the registration with this stamp has listings of its folders recorded."""
    return stamp.endswith(f"/{LISTING}")


def inventory(folders: Folders) -> dict[Name, AnnouncedRegistration]:
    """Every registration on this node's disk; empty if it cannot be read. Runs in a thread."""
    registrations = {}
    try:
        for path in folders.tenants.glob(f"*/*/{REGISTRATION}"):
            document = read_document(path)
            if document is not None:
                registrations[str(document.get("tenant")), str(document.get("name"))] = known_of(document)
    except OSError:
        return {}
    return registrations


class Mark(NamedTuple):
    """The epoch and the stamp with which a registration was last seen in the fleet's table."""

    epoch: str
    stamp: str


def read_marks(folders: Folders) -> dict[Name, Mark]:
    """The recorded marks; empty if the file cannot be read, so that everything is announced again."""
    try:
        document = json.loads((folders.root / _FILE).read_bytes())
        return {_name(text): Mark(str(epoch), str(stamp)) for text, (epoch, stamp) in document.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_marks(folders: Folders, news: Mapping[Name, Mark], epoch: str) -> None:
    """Add marks. Marks of another epoch are removed once their registration is gone.

    Raises:
        OSError: the disk cannot be written.
    """
    folders.create()
    with folders.locked():
        marks = {**read_marks(folders), **news}
        kept = {
            json.dumps(name): mark
            for name, mark in marks.items()
            if mark.epoch == epoch or (folders.of_tenant(name[0]) / name[1]).exists()
        }
        write_document(folders.root / _FILE, kept)


def _name(text: str) -> Name:
    tenant, name = json.loads(text)
    return str(tenant), str(name)
