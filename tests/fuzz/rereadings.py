"""Signed requests with unsigned additions that another server could interpret: folded header names, respelled parameters,
second lines, and headers named by Connection. No addition may reach the origin, and every signed part must."""

from __future__ import annotations

import random
from collections.abc import Callable

from gateway.model.s3.query import SUB_RESOURCES
from gateway.model.s3.request_headers import FORWARDED
from gateway.model.s3.sigv4 import WireRequest
from tests.fuzz.corpus import raw, url
from tests.fuzz.world import Broken, World

ADDED = b"added-by-nobody"
"""The value of everything that is added."""
SIGNED = {"x-amz-meta-a_b": "signed", "x-amz-tagging": "a=signed"}
_HEADERS = sorted(FORWARDED | {b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"transfer-encoding", b"host"})
_PARAMETERS = sorted(SUB_RESOURCES | {b"append", b"position", b"x-amz-acl", b"x-amz-copy-source", b"x-amz-meta-a_b"})

Trick = Callable[[WireRequest, random.Random], None]


def folded_header(request: WireRequest, rng: random.Random) -> None:
    """A name that CGI, WSGI or radosgw read as another one."""
    name = rng.choice([name for name in _HEADERS if b"-" in name])
    parts = name.split(b"-")
    at = rng.randrange(1, len(parts))
    odd = rng.choice([b"_", b"_", b"_", b".", b"~", b"!"])
    name = b"-".join(parts[:at]) + odd + rng.choice([b"-", b"_"]).join(parts[at:])
    request.headers.insert(rng.randrange(len(request.headers) + 1), (_any_case(name, rng), ADDED))


def unsigned_header(request: WireRequest, rng: random.Random) -> None:
    """A header of S3, or of another vendor's, that the signature does not cover."""
    names = [name for name in _HEADERS if name.startswith(b"x-amz-") and name.decode() not in SIGNED]
    vendors = [
        b"x-goog-acl",
        b"x-minio-force-delete",
        b"x-rgw-acl",
        b"x-http-method-override",
        b"x-larder-peer",
        b"x-amz-new",
    ]
    request.headers.append((_any_case(rng.choice([*names, *vendors]), rng), ADDED))


def second_line(request: WireRequest, rng: random.Random) -> None:
    """A header once more, with another value."""
    name, _ = rng.choice(request.headers)
    request.headers.insert(rng.randrange(len(request.headers) + 1), (_any_case(name, rng), ADDED))


def taken_away(request: WireRequest, rng: random.Random) -> None:
    """Name a signed header in Connection."""
    request.headers.append((b"connection", b"close, " + _any_case(rng.choice(sorted(SIGNED)).encode(), rng)))


def respelled_parameter(request: WireRequest, rng: random.Random) -> None:
    """A parameter in a spelling that a store may undo."""
    name = rng.choice(_PARAMETERS)
    if rng.random() < 0.3:
        name = _any_case(name, rng)
    for _ in range(rng.choice([0, 1, 1, 2])):
        name = b"".join(b"%%%02X" % byte if rng.random() < 0.4 else bytes([byte]) for byte in name)
    name = rng.choice([b"", b"", b"", b"?", b"&", b";", b"%26", b"%3f", b"+", b"x;"]) + name
    piece = name + rng.choice([b"=", b"=", b"=", b"%3D", b"%3d", b"==", b"%00=", b"[]="]) + ADDED
    pieces = [piece, *(one for one in (request.query,) if one)]
    rng.shuffle(pieces)
    request.query = b"&".join(pieces)


TRICKS: tuple[Trick, ...] = (
    folded_header, folded_header, unsigned_header, second_line, taken_away, respelled_parameter, respelled_parameter,
)  # fmt: skip


def reread(world: World, rng: random.Random) -> list[int]:
    """Send one such request and return the statuses of the answer.

    Raises:
        Broken: an unsigned part reached the origin, or a signed part did not.
    """
    world.origin.seen.clear()
    method = rng.choice(["PUT", "PUT", "GET", "HEAD", "DELETE"])
    sign = rng.choice([world.signer.header, world.signer.presigned, world.signer.presigned_v2])
    request = sign(method, url(world, "rereading"), SIGNED)
    path = request.raw_path.decode()
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        rng.choice(TRICKS)(request, rng)
    data = raw(request)
    statuses = world.judge(world.send([data]))
    for seen in world.origin.seen:
        said = f"{seen.query} {seen.headers}".encode()
        if ADDED in said:
            raise Broken(f"what nobody signed reached the origin: {said!r}; sent: {data!r}")
        mine = seen.method == "PUT" and seen.raw_path == path
        if mine and not all(seen.header(name) == value for name, value in SIGNED.items()):
            raise Broken(f"what was signed did not reach the origin: {said!r}; sent: {data!r}")
    return statuses


def _any_case(name: bytes, rng: random.Random) -> bytes:
    return bytes(byte ^ 32 if 65 <= byte & ~32 <= 90 and rng.random() < 0.2 else byte for byte in name)
