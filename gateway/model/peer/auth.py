"""Authentication between nodes: every request is signed with the fleet's shared secret.

The signature covers the protocol's version, the sender, the time, the hash of the body, method, path and query as on the wire,
and every other ``x-larder-`` header; so none of these can be changed or removed on the way, and a signature is valid for one
address only. Other headers (Range, If-Match, ...) only select the part to send.

An intercepted request can be replayed for a quarter of an hour. Calls between nodes only read, so a replay returns an answer that
the attacker has already seen. Clocks of nodes may differ by as much.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from gateway.model.errors import LarderError
from gateway.model.fleet import PROTOCOL, is_node_name
from gateway.model.objects import Header
from gateway.model.peer.principal import PRINCIPAL
from gateway.model.s3.sigv4 import EMPTY_SHA256, RawHeader, WireRequest, keyed_hash

PEER = "x-larder-peer"
PEER_PROTOCOL = "x-larder-protocol"
PEER_DATE = "x-larder-date"
PEER_BODY = "x-larder-body"
PEER_SIGNATURE = "x-larder-signature"
WINDOW = 15 * 60.0
"""Accepted difference, in seconds, between a request's date and the receiver's clock."""

_OWN = (PEER, PEER_PROTOCOL, PEER_DATE, PEER_BODY, PEER_SIGNATURE)
_OWN_RAW = {name.encode(): name for name in _OWN}
_PREFIX = b"x-larder-"
_SIGNATURE = PEER_SIGNATURE.encode()
_PROTOCOL = str(PROTOCOL)


class PeerRefused(LarderError):
    """A request does not come from another node of this fleet.

    Args:
        reason: one word, for counting: ``unsigned``, ``protocol``, ``date``, ``signature`` or ``body``.
        detail: what is wrong, and the remedy.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


@dataclass(frozen=True, slots=True)
class PeerSigner:
    """Signs requests of the node ``node`` with the fleet's ``secret``."""

    secret: str
    node: str

    def headers(self, request: WireRequest, body: bytes, now: float) -> list[Header]:
        """The headers to add to a request that has all its other headers; ``now`` in seconds since the epoch."""
        digest = sha256(body).hexdigest() if body else EMPTY_SHA256
        own = [(PEER, self.node), (PEER_PROTOCOL, _PROTOCOL), (PEER_DATE, str(int(now))), (PEER_BODY, digest)]
        pairs = list(request.headers)
        for name, value in own:
            pairs.append((name.encode(), value.encode()))  # in Python 3.11 a comprehension is a call
        own.append((PEER_SIGNATURE, _signature(self.secret, request, pairs)))
        return own

    def get(self, target: str, host: str, principal: str, now: float) -> bytes:
        """A whole GET that names nothing but a principal, signed as by ``headers``."""
        own = (
            f"{PEER_BODY}:{EMPTY_SHA256}\n{PEER_DATE}:{int(now)}\n{PEER}:{self.node}\n{PRINCIPAL}:{principal}\n"
            f"{PEER_PROTOCOL}:{_PROTOCOL}"
        )
        signature = keyed_hash(self.secret.encode(), f"larder-peer-1\nGET\n{target}\n\n{own}".encode())
        lines = own.replace("\n", "\r\n")
        return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n{PEER_SIGNATURE}:{signature}\r\n\r\n".encode()


class Verified(NamedTuple):
    """The verified head of a request from the node ``node``; its body must have the SHA-256 ``body``, in hex."""

    node: str
    body: str

    def confirm(self, body: bytes) -> None:
        """Verify the body.

        Raises:
            PeerRefused: it differs from the signed one.
        """
        if self.body != (sha256(body).hexdigest() if body else EMPTY_SHA256):
            raise PeerRefused("body", "The body differs from the signed one.")


def proof(secret: str, said: Mapping[str, Any], kind: str = "node") -> str:
    """A signature that shows that a node wrote a document, wherever it is stored: write access to Redis alone is not enough.

    Args:
        secret: the fleet's.
        said: the document, such as a node's entry.
        kind: one word for the kind of document; a signature for one kind is invalid for another.
    """
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret.encode(), f"larder-{kind}-1\n{text}".encode(), sha256).hexdigest()


def verify(secret: str, request: WireRequest, now: float) -> Verified:
    """Verify the head of a request, before its body is read; ``now`` in seconds since the epoch.

    Raises:
        PeerRefused: no node of this fleet sent it.
    """
    own = _own(request.headers)
    if own[PEER_PROTOCOL] != _PROTOCOL:
        raise PeerRefused(
            "protocol",
            f"This node speaks version {PROTOCOL} of the protocol between nodes; run the same release of Larder on all nodes.",
        )
    if not hmac.compare_digest(own[PEER_SIGNATURE].encode(), _signature(secret, request, request.headers).encode()):
        raise PeerRefused("signature", "The signature does not match; give all nodes the same fleet.secret.")
    # Only senders with the secret learn about the clock.
    date = own[PEER_DATE]
    if not (date.isdecimal() and len(date) < 16 and abs(int(date) - now) <= WINDOW):
        raise PeerRefused(
            "date", f"The request's date is off by more than {WINDOW / 60:.0f} minutes; set the clocks of the nodes."
        )
    if not is_node_name(own[PEER]):
        raise PeerRefused("unsigned", f"{PEER} must be a node's id.")
    return Verified(own[PEER], own[PEER_BODY])


def _own(headers: Iterable[RawHeader]) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw, value in headers:
        if (name := _OWN_RAW.get(raw)) is not None:
            if name in found:
                raise PeerRefused("unsigned", f"{name} appears more than once.")
            found[name] = value.decode("latin-1")
    if len(found) < len(_OWN):
        missing = next(name for name in _OWN if name not in found)
        raise PeerRefused("unsigned", f"Only nodes of the fleet may use this address: {missing} is missing.")
    return found


def _signature(secret: str, request: WireRequest, headers: Iterable[RawHeader]) -> str:
    """Sign the lines. They are unambiguous: no part of a request's head can contain a line feed."""
    lines = [b"larder-peer-1", request.method.encode(), request.raw_path, request.query]
    for name, value in sorted(headers):
        if name.startswith(_PREFIX) and name != _SIGNATURE:
            lines.append(name + b":" + value.strip())
    return keyed_hash(secret.encode(), b"\n".join(lines))
