"""Authentication between nodes: every request is signed with the fleet's shared secret.

The signature covers the protocol's version, the sender, the time, the hash of the body, method, path and query as on the wire,
and every other ``x-larder-`` header; so none of these can be changed or removed on the way, and a signature is valid for one
address only. Other headers (Range, If-Match, ...) only select the part to send.

The body of a request is bound by its hash, which is compared before the request is carried out. A request is accepted within a
quarter of an hour of its date; clocks of nodes may differ by that much. Within that time, an intercepted request that only reads
can be replayed, and returns what it would return to its sender then. A request that changes anything (stores results or scores,
forgets, announces, warms) is carried out once: it has a random number, so that no two have the same signature, and the node
remembers its signature for as long as it is accepted, in all its workers (gateway/store/shared/seen.py). These signatures are in
memory: after a restart of the machine within that time, a request can be replayed once more. Whether a request is secret is up to
the network; nothing here encrypts it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
PEER_NONCE = "x-larder-nonce"
"""The header with the random number of a request that changes something."""
WINDOW = 15 * 60.0
"""Accepted difference, in seconds, between a request's date and the receiver's clock."""

_OWN = (PEER, PEER_PROTOCOL, PEER_DATE, PEER_BODY, PEER_SIGNATURE)
_OWN_RAW = tuple(name.encode() for name in _OWN)
_PREFIX = b"x-larder-"
_SIGNATURE = PEER_SIGNATURE.encode()
_PROTOCOL = str(PROTOCOL)
_RAW_PROTOCOL = _PROTOCOL.encode()
_NO_BODY = EMPTY_SHA256.encode()
_FORMS_KEPT = 64
"""Sets of headers whose signed form is cached; bounded because anyone may send any set. A head has at most 64 KiB."""
_NAMED_KEPT = 1024
"""Principals whose header lines are cached for a second; nodes whose names are known to be valid."""
_is_node_name = lru_cache(maxsize=_NAMED_KEPT)(is_node_name)


class PeerRefused(LarderError):
    """A request does not come from another node of this fleet.

    Args:
        reason: one word, for counting: ``unsigned``, ``protocol``, ``date``, ``signature`` ``body`` or ``replayed``.
        detail: the problem and the remedy.
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

    def headers(self, request: WireRequest, body: bytes, now: float, nonce: str = "") -> list[Header]:
        """The headers to add to a request that has all its other headers.

        Args:
            request: to be signed.
            body: its whole body.
            now: seconds since the epoch.
            nonce: of a request that changes something: a text that no other request has.
        """
        digest = sha256(body).hexdigest() if body else EMPTY_SHA256
        own = [(PEER, self.node), (PEER_PROTOCOL, _PROTOCOL), (PEER_DATE, str(int(now))), (PEER_BODY, digest)]
        if nonce:
            own.append((PEER_NONCE, nonce))
        fields = dict(request.headers)
        for name, value in own:
            fields[name.encode()] = value.encode()
        own.append((PEER_SIGNATURE, _form(tuple(fields)).sign(self.secret, request, fields)))
        return own

    def get(self, target: str, host: str, principal: str, now: float) -> bytes:
        """A whole GET that names only a principal, signed as by ``headers``."""
        own, lines = _lines_of_get(self.node, principal, int(now))
        signature = keyed_hash(self.secret.encode(), f"larder-peer-1\nGET\n{target}\n\n{own}".encode())
        return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{lines}{signature}\r\n\r\n".encode()


@lru_cache(maxsize=_NAMED_KEPT)
def _lines_of_get(node: str, principal: str, second: int) -> tuple[str, str]:
    """The signed fields of GETs within one second, apart from the address, and their header lines up to the signature."""
    own = (
        f"{PEER_BODY}:{EMPTY_SHA256}\n{PEER_DATE}:{second}\n{PEER}:{node}\n{PRINCIPAL}:{principal}\n"
        f"{PEER_PROTOCOL}:{_PROTOCOL}"
    )
    return own, own.replace("\n", "\r\n") + f"\r\n{PEER_SIGNATURE}:"


class Verified(NamedTuple):
    """The verified head of a request from the node ``node``; its body must have the SHA-256 ``body``, in hex.

    ``signature`` is the request's, ``date`` the time at which it was signed, in seconds since the epoch.
    """

    node: str
    body: str
    signature: bytes = b""
    date: int = 0

    def confirm(self, body: bytes) -> None:
        """Verify the body.

        Raises:
            PeerRefused: it differs from the signed one.
        """
        if self.body != (sha256(body).hexdigest() if body else EMPTY_SHA256):
            raise PeerRefused("body", "The body differs from the signed one.")


def proof(secret: str, said: Mapping[str, Any], kind: str = "node") -> str:
    """A signature which proves that a node wrote a document, wherever it is stored: write access to Redis alone is not enough to
    forge one.

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
        PeerRefused: the sender is not a node of this fleet.
    """
    fields = request.fields
    if len(fields) != len(request.headers):
        _require_single(request.headers)
    form = _form(tuple(fields))
    if form.missing:
        raise PeerRefused("unsigned", f"Only nodes of the fleet may use this address: {form.missing[0]} is missing.")
    node, protocol, date, body, claimed = map(fields.__getitem__, _OWN_RAW)
    if protocol != _RAW_PROTOCOL:
        raise PeerRefused(
            "protocol",
            f"This node speaks version {PROTOCOL} of the protocol between nodes; run the same release of Larder on all nodes.",
        )
    if not hmac.compare_digest(claimed, form.sign(secret, request, fields).encode()):
        raise PeerRefused("signature", "The signature does not match; give all nodes the same fleet.secret.")
    # Only senders with the secret may learn this clock's time.
    if not _is_recent(date, now):
        raise PeerRefused(
            "date", f"The request's date is off by more than {WINDOW / 60:.0f} minutes; set the clocks of the nodes."
        )
    name = node.decode("latin-1")
    if not _is_node_name(name):
        raise PeerRefused("unsigned", f"{PEER} must be a node's id.")
    return Verified(name, body.decode("latin-1"), claimed, int(date))


def verify_get(secret: str, raw_path: bytes, headers: Sequence[RawHeader], now: float) -> bytes | None:
    """Verify a request in the form of ``PeerSigner.get``, without query or body.

    Returns:
        The principal that it names; ``None`` if anything differs from that form: ``verify`` gives the reason.
    """
    if len(headers) != len(_NAMES_OF_GET):
        return None
    names, values = zip(*headers, strict=True)
    if names != _NAMES_OF_GET:
        return None
    _, body, date, node, principal, protocol, claimed = values
    text = _FORM_OF_GET.text % (b"GET", raw_path, b"", body, date, node, principal, protocol)
    if not hmac.compare_digest(claimed, keyed_hash(secret.encode(), text).encode()):
        return None
    right = protocol == _RAW_PROTOCOL and body == _NO_BODY and _is_recent(date, now)
    return principal if right and _is_node_name(node.decode("latin-1")) else None


def _is_recent(date: bytes, now: float) -> bool:
    return date.isdigit() and len(date) < 16 and abs(int(date) - now) <= WINDOW


def _require_single(headers: Iterable[RawHeader]) -> None:
    """Refuse a request that repeats a header of requests between nodes."""
    names: set[bytes] = set()
    for name, _ in headers:
        if name in names and name.startswith(_PREFIX):
            raise PeerRefused("unsigned", f"{name.decode('latin-1')} appears more than once.")
        names.add(name)


class _Form(NamedTuple):
    """The signed form of requests with the same header names.

    ``signed`` are the names of the signed headers, in order; ``text`` is a template of the signed text, which takes method, path,
    query and their values; ``missing`` are required headers that are not among them.
    """

    signed: tuple[bytes, ...]
    text: bytes
    missing: tuple[str, ...]

    def sign(self, secret: str, request: WireRequest, fields: Mapping[bytes, bytes]) -> str:
        """The signature of a request with these headers. The text is unambiguous: no part of a head can contain a line feed."""
        values = map(bytes.strip, map(fields.__getitem__, self.signed))
        text = self.text % (request.method.encode(), request.raw_path, request.query, *values)
        return keyed_hash(secret.encode(), text)


@lru_cache(maxsize=_FORMS_KEPT)
def _form(names: tuple[bytes, ...]) -> _Form:
    """The form of requests that have headers of these names."""
    signed = sorted(name for name in names if name.startswith(_PREFIX) and name != _SIGNATURE)
    block = b"".join([b"\n%b:%%b" % name.replace(b"%", b"%%") for name in signed])
    missing = [name for name, raw in zip(_OWN, _OWN_RAW, strict=True) if raw not in names]
    return _Form(tuple(signed), b"larder-peer-1\n%b\n%b\n%b" + block, tuple(missing))


_NAMES_OF_GET = (
    b"host",
    *(header.encode() for header in (PEER_BODY, PEER_DATE, PEER, PRINCIPAL, PEER_PROTOCOL, PEER_SIGNATURE)),
)
_FORM_OF_GET = _form(_NAMES_OF_GET)
