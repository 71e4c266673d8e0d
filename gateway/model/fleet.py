"""Vocabulary of fleets: nodes, and their states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "id": self.id,
            "address": self.address,
            "capacity": self.capacity,
            "zone": self.zone,
            "state": self.state.value,
            "protocol": self.protocol,
            "boot": self.boot,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Node:
        """Parse a node.

        Raises:
            ValueError, KeyError, TypeError: the document is malformed.
        """
        node = cls(
            str(document["id"]),
            str(document["address"]),
            int(document["capacity"]),
            str(document["zone"]),
            NodeState(document["state"]),
            int(document["protocol"]),
            str(document["boot"]),
        )
        if not is_node_name(node.id) or node.capacity < 1:
            raise ValueError(f"not a node: {document!r}")
        return node


def is_node_name(text: str) -> bool:
    """Whether a text is a valid name of a node or zone."""
    return _NAME.fullmatch(text) is not None
