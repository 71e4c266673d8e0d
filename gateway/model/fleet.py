"""A fleet in words: what a node is, and which states it goes through."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PROTOCOL = 1
"""The version of what nodes say to each other. Nodes of different versions are no fleet: each version has a ring of its own."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class NodeState(StrEnum):
    """Where a node is between start and stop; only READY ones are home of anything."""

    JOINING = "JOINING"
    """It answers, but does not know yet what its disk holds."""
    READY = "READY"
    """It is in the ring."""
    LEAVING = "LEAVING"
    """It finishes what it has begun; nobody should ask it for anything new."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with one cache.

    ``address`` is ``http://host:port``, under which other nodes and clients reach it; ``capacity`` its cache in bytes; ``boot`` a
    token of its last start, which its workers share.
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
        """Read a node.

        Raises:
            ValueError, KeyError, TypeError: it is none.
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
    """Whether a text can name a node, or a zone."""
    return _NAME.fullmatch(text) is not None
