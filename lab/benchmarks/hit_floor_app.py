"""The least that a warm GET takes in Python: receive, verify the signature, look the object up, send it from memory.

``python -m lab.benchmarks.hit_floor_app LOOP CHECK PORT`` serves the directory ``BENCH_ROOT``. There is nothing of a
gateway in it: no limit, freshness, rights, metrics, log, error or second request in one packet.

- LOOP: ``uvloop`` has a protocol of asyncio; ``epoll`` is a bare loop over ``select.epoll`` with one recv and one sendmsg each.
- CHECK: ``verified`` compares the head's shape and verifies its signature as the gateway does; ``unverified`` does neither.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import socket
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

import uvloop

from gateway.model.s3 import sigv4
from gateway.model.s3.sigv4_claims import dated_claim
from gateway.server.template import DATE, SIGNATURE, Template

Answer = Callable[[bytes], tuple[bytes, bytes]]
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-type: application/octet-stream\r\n"
    b'etag: "5d41402abc4b2a76b9719d911017c592"\r\nlast-modified: Fri, 20 Nov 2026 10:00:00 GMT\r\naccept-ranges: bytes\r\n'
    b"date: Fri, 20 Nov 2026 10:00:00 GMT\r\nx-amz-request-id: 0123456789ABCDEF\r\n\r\n"
)


def _objects(root: Path) -> dict[bytes, tuple[bytes, bytes]]:
    """Head and body of every file, by the path of a request."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {
        b"/" + os.fsencode(path.relative_to(root)): (_HEAD % path.stat().st_size, path.read_bytes()) for path in files
    }


class Verified:
    """Answers heads of one shape if their signatures are right."""

    def __init__(self, objects: dict[bytes, tuple[bytes, bytes]], secret: str) -> None:
        self._objects = objects
        self._secret = secret
        self._template: Template | None = None

    def __call__(self, head: bytes) -> tuple[bytes, bytes]:
        """Head and body of the answer. Raises PermissionError if the signature is wrong."""
        match = None if self._template is None else self._template.match(head)
        if match is None:
            match = self._learn(head)
        path, values = match
        date = values[self._date_at]
        canonical = self._form % (path, *map(values.__getitem__, self._order))
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(b"%b\n%b\n%b\n" % (sigv4.ALGORITHM, date, self._scope))
        inner.update(sha256(canonical).hexdigest().encode())
        outer.update(inner.digest())
        if not compare_digest(outer.hexdigest().encode(), values[self._signature_at]):
            raise PermissionError(path)
        return self._objects[path]

    def _learn(self, head: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """Prepare the shared parts of heads of this shape."""
        fields = {}
        for line in head[head.index(b"\r\n") + 2 : -4].split(b"\r\n"):
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip()
        template = self._template = Template.of(head)
        assert template is not None, "the head has neither date nor signature"
        names = template.names
        claim, _, _ = dated_claim(fields[SIGNATURE][:-64], fields[DATE])
        marked = {**fields, **{name: b"\0%b\0" % name for name in names if name != SIGNATURE}}
        text = sigv4.canonical_request(b"GET", b"\0path\0", b"", marked, claim.names, fields[b"x-amz-content-sha256"])
        pieces = text.replace(b"%", b"%%").split(b"\0")
        self._form, self._order = b"%b".join(pieces[::2]), [names.index(name) for name in pieces[3::2]]
        self._date_at, self._signature_at = names.index(DATE), names.index(SIGNATURE)
        self._inner, self._outer = sigv4.pads(sigv4.signing_key(self._secret, claim.date, claim.region))
        self._scope = claim.scope
        match = template.match(head)
        assert match is not None
        return match


class _Protocol(asyncio.Protocol):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._out = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))

    def data_received(self, data: bytes) -> None:
        self._out.sendmsg(self._answer(data))

    def connection_lost(self, error: Exception | None) -> None:
        self._out.close()


async def _with_uvloop(port: int, answer: Answer) -> None:
    await asyncio.get_running_loop().create_server(lambda: _Protocol(answer), "127.0.0.1", port)
    await asyncio.Event().wait()


def _with_epoll(port: int, answer: Answer) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                connection, _ = listener.accept()
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                continue
            connection = connections[descriptor]
            try:
                data = connection.recv(65536)
            except ConnectionResetError:
                data = b""
            if data:
                connection.sendmsg(answer(data))
            else:
                del connections[descriptor]
                connection.close()


def main(arguments: Sequence[str]) -> None:
    """Serve until killed."""
    loop, check, port = arguments
    objects = _objects(Path(os.environ["BENCH_ROOT"]))
    verified = Verified(objects, os.environ["BENCH_SECRET"])
    answer: Answer = verified if check == "verified" else lambda head: objects[head[4 : head.index(b" ", 4)]]
    gc.freeze()
    if loop == "epoll":
        _with_epoll(int(port), answer)
    else:
        uvloop.run(_with_uvloop(int(port), answer))


if __name__ == "__main__":
    main(sys.argv[1:])
