"""Vocabulary of fleets: nodes, and their states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

PROTOCOL = 1
"""The version of the protocol between nodes. Nodes of different versions do not share: each version has its own ring."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class NodeState(StrEnum):
    """The stage of a node's life; only READY nodes are homes."""

    JOINING = "JOINING"
    """It answers, but has not read its disk yet."""
    READY = "READY"
    """It is in the ring."""
    LEAVING = "LEAVING"
    """It finishes its work; it gets no new requests from others."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with one cache.

    ``address`` is ``http://host:port`` for other nodes and clients; ``capacity`` its cache in bytes; ``boot`` a
    token of its last start, shared by its workers.
    """

    id: str
    address: str
    capacity: int
    zone: str
    state: NodeState
    protocol: int = PROTOCOL
    boot: str = ""


def is_node_name(text: str) -> bool:
    """Whether a text is a valid name of a node or zone."""
    return _NAME.fullmatch(text) is not None
