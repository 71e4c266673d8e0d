"""Batches of running gateways: datasets at a fake origin, requests over plain HTTP, answers decoded by the client's decoder."""

from __future__ import annotations

import io
import random
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from larder.reading.frames import Decoder, Received
from rig.digests import Row, id_of, sha, write
from rig.gateways import Running
from rig.origin import FakeOrigin
from rig.signed_requests import ClientSigner
from rig.v1 import GWA, Key, Reply, ask, register


@dataclass
class Stock:
    """A dataset whose items are objects at the origin."""

    name: str
    rows: list[Row]
    bodies: list[bytes]
    file: Path

    @property
    def id(self) -> str:
        """The dataset's id."""
        return id_of(self.rows)

    def path(self, index: int) -> str:
        """An item's raw path at the origin."""
        return f"/{self.rows[index].bucket}/{self.rows[index].key}"

    def register(self, running: Running, caching: str = "full", key: Key = GWA) -> None:
        """Register the dataset at a gateway."""
        reply = register(running, self.name, self.file.read_bytes(), key, f"?caching={caching}")
        assert reply.status in (200, 201), reply.body

    def ask(
        self,
        running: Running,
        indices: Iterable[int],
        query: str = "",
        key: Key | None = GWA,
        what: str = "batch",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request, with its whole answer."""
        path = f"/v1/datasets/{self.id}/{what}{query and '?' + query}"
        return ask(running, "POST", path, packed(indices), key, headers)

    def read(self, running: Running, indices: Sequence[int], query: str = "", key: Key = GWA) -> dict[int, bytes]:
        """Bytes by position; any failure is a mistake of the test."""
        reply = self.ask(running, indices, query, key)
        assert reply.status == 200, reply.body
        received = decoded(indices, reply.body)
        assert not received.failures
        return taken(received)

    def expected(self, indices: Iterable[int]) -> dict[int, bytes]:
        """The bytes by position that an exact batch of these items delivers."""
        return {position: self.bodies[index] for position, index in enumerate(indices)}

    def missing(self, running: Running) -> list[int]:
        """The items that the gateway does not report as cached."""
        reply = self.ask(running, range(len(self.bodies)), what="lookup")
        assert reply.status == 200, reply.body
        bits = np.unpackbits(np.frombuffer(reply.body, np.uint8), count=len(self.bodies), bitorder="little")
        return np.flatnonzero(bits == 0).tolist()


def packed(indices: Iterable[int]) -> bytes:
    """The body of a request."""
    return np.array(list(indices), dtype="<u4").tobytes()


def decoded(indices: Iterable[int], body: bytes) -> Received:
    """Decode an answer, which must be whole."""
    return Decoder(np.array(list(indices), dtype=np.uint32)).decode(io.BytesIO(body))


def taken(received: Received) -> dict[int, bytes]:
    """Bytes by position."""
    return {position: bytes(data) for position, data in zip(received.positions, received.data, strict=True)}


def stock(origin: FakeOrigin, home: Path, name: str, bodies: Sequence[bytes], suffix: str = ".bin") -> Stock:
    """A dataset at an origin."""
    rows = []
    for index, body in enumerate(bodies):
        key = f"{name}/{index:06d}{suffix}"
        origin.put("data", key, body)
        rows.append(Row(sha(body), "data", key, None, len(body)))
    home.mkdir(parents=True, exist_ok=True)
    return Stock(name, rows, list(bodies), write(home / f"{name}.parquet", rows))


def bytes_of(count: int, size: int, seed: object) -> list[bytes]:
    """Items that are unique to the seed."""
    chance = random.Random(f"{seed}/{count}/{size}")
    return [chance.randbytes(size) for _ in range(count)]


def chunk_sizes(running: Running, path: str, body: bytes) -> list[int]:
    """The sizes of the chunks of an answer to a POST."""
    made = ClientSigner(*GWA).header("POST", f"{running.endpoint}/-{path}", {}, body=body)
    names = {name.decode().lower(): value.decode() for name, value in made.headers}
    names |= {"content-length": str(len(body)), "connection": "close", "host": f"127.0.0.1:{running.port}"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in names.items())
    data = b""
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as sock:
        sock.sendall(f"POST /-{path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        while piece := sock.recv(1 << 20):
            data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower(), head
    sizes: list[int] = []
    while True:
        line, _, rest = rest.partition(b"\r\n")
        if not int(line, 16):
            return sizes
        sizes.append(int(line, 16))
        rest = rest[sizes[-1] + 2 :]
