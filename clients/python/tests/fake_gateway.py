"""A gateway that keeps the batch contract, and breaks it on request."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from batch_wire import HIT, OK, STREAMED, Answer, Item, failure, frames_form, index_form

ID = "ab" * 32


@dataclass
class Asked:
    """One request that came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def indices(self) -> list[int]:
        """Of a batch or lookup."""
        return list(struct.unpack(f"<{len(self.body) // 4}I", self.body))


class Handler(BaseHTTPRequestHandler):
    """Notes the request, lets the next fault have it, or answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "FakeBatchGateway"

    def do_POST(self) -> None:
        """Any request."""
        parts = urlsplit(self.path)
        if self.server.dead:
            self.close_connection = True
            return
        if parts.path == "/-/v1/fleet" or parts.path.endswith("/homes"):
            self.send_fleet(parts.path, dict(parse_qsl(parts.query)))
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        asked = Asked(
            self.command, parts.path, dict(parse_qsl(parts.query)), dict(self.headers), body, self.client_address[1]
        )
        with self.server.lock:
            self.server.asked.append(asked)
            fault = self.server.faults.pop(0) if self.server.faults else None
        if fault is not None:
            fault(self, asked)
        elif "/results/" in parts.path:
            self.server.results(self, asked)
        elif parts.path.endswith("/batch") and asked.query.get("mode") != "prefetch":
            self.send_batch(self.server.answer(asked))
        else:
            self.server.other(self, asked)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST

    def send_fleet(self, path: str, query: dict[str, str]) -> None:
        """Answer readers' background requests, which are not recorded and get no faults."""
        server = self.server
        server.looks += 1
        if not server.fleet:
            self.send_problem(404, "UnknownAddress")
        elif path == "/-/v1/fleet":
            nodes = [{"id": id, "address": at, "capacity": 1, "state": "READY"} for id, at in server.fleet.items()]
            named = {"unix_socket": server.unix_socket}
            self.send_json({"zone": "default", "ring": server.ring, "version": 1, "nodes": nodes, **named})
        elif server.keys is not None:
            server.keys(self, Asked("GET", path, query, {}, b"", 0))
        else:
            start, count = int(query["start"]), int(query["count"])
            keys = [key_of(index) for index in range(len(server.store.items))][start : start + count]
            self.send(200, struct.pack(f"<{len(keys)}Q", *keys))

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A plain answer; underscores in names become dashes."""
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def send_problem(self, status: int, code: str, detail: str = "", **headers: str) -> None:
        """A problem document."""
        problem = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail}
        self.send(status, json.dumps(problem).encode(), Content_Type="application/problem+json", **headers)

    def send_json(self, document: object, status: int = 200) -> None:
        """A JSON document."""
        self.send(status, json.dumps(document).encode(), Content_Type="application/json")

    def head_of_batch(self, length: int | None) -> None:
        """The head of a batch answer; chunked without a length."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-larder-batch")
        self.send_header("x-larder-caching", "full")
        self.send_header("x-larder-chunk", "3")
        self.send_header("x-larder-plan", "7")
        framing = ("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))
        self.send_header(*framing)
        self.end_headers()

    def send_batch(self, answer: Answer, *, size: int | None = None, chunk: int = 1 << 20) -> None:
        """A batch answer, or its first ``size`` bytes; index form with a length, frames chunked."""
        known = answer.body.startswith(b"LRDI")
        self.head_of_batch(len(answer.body) if known else None)
        sent = answer.body[:size]
        if known:
            self.wfile.write(sent)
            return
        for start in range(0, len(sent), chunk):
            piece = sent[start : start + chunk]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if size is None:
            self.wfile.write(b"0\r\n\r\n")

    def reset(self) -> None:
        """Break the connection off with a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.server.resets.add(self.connection)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


def key_of(index: int) -> int:
    """The ring's key of an item."""
    return index * 0x9E3779B97F4A7C15 % 2**64


Fault = Callable[[Handler, Asked], None]


@dataclass
class Store:
    """The fake gateway's content: bytes by index, statuses of missing items, and the form of the answers."""

    items: dict[int, bytes]
    lost: dict[int, int] = field(default_factory=dict)
    streamed: set[int] = field(default_factory=set)
    frames: bool = False


class FakeBatchGateway(ThreadingHTTPServer):
    """Serves a ``Store``; each request uses up one of ``faults``, and is recorded in ``asked``.

    ``fleet``: addresses of nodes by id, if it is part of a fleet; ``looks``: the number of requests for them; a ``dead`` gateway
    breaks off every connection. ``results`` answers requests about results of pipelines.
    """

    daemon_threads = True

    def __init__(self, store: Store) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.store = store
        self.lock = threading.Lock()
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.resets: set[socket.socket] = set()
        self.fleet: dict[str, str] = {}
        self.unix_socket: dict[str, object] | None = None
        self.ring = 1
        self.keys: Fault | None = None
        self.looks = 0
        self.dead = False
        self.other: Fault = lambda handler, asked: handler.send_problem(404, "UnknownDataset", "register it again")
        self.results = self.other
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"

    def shutdown_request(self, request: socket.socket) -> None:
        """Close a connection; one that is to be reset without saying good-bye."""
        if request in self.resets:
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def answer(self, asked: Asked) -> Answer:
        """The answer to a batch request by the contract."""
        indices, take = asked.indices, int(asked.query.get("take", 1 << 20))
        items: list[Item] = []
        for position, index in enumerate(indices):
            if index in self.store.lost:
                items.append(failure(position, index, self.store.lost[index], "bucket", f"key {index}", "told so"))
            elif sum(item.status == OK for item in items) < take:
                flags = STREAMED if index in self.store.streamed else HIT
                items.append(Item(position, index, self.store.items[index], flags))
        plain = not self.store.frames and all(item.status == OK and item.flags == HIT for item in items)
        return (index_form if plain else frames_form)(items)

    def batches(self) -> list[Asked]:
        """The batch requests that came."""
        return [asked for asked in self.asked if asked.path.endswith("/batch")]


@contextmanager
def serving(server: FakeBatchGateway) -> Iterator[FakeBatchGateway]:
    """Run a server in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def cut(size: int) -> Fault:
    """The answer's first ``size`` bytes, then the connection's end."""

    def fault(handler: Handler, asked: Asked) -> None:
        handler.send_batch(handler.server.answer(asked), size=size)
        handler.close_connection = True

    return fault


def flip(byte: int, bit: int) -> Fault:
    """The answer with one bit wrong."""

    def fault(handler: Handler, asked: Asked) -> None:
        answer = handler.server.answer(asked)
        damaged = bytearray(answer.body)
        damaged[byte] ^= 1 << bit
        known = answer.body.startswith(b"LRDI")
        handler.head_of_batch(len(damaged) if known else None)
        handler.wfile.write(damaged if known else b"%x\r\n%b\r\n0\r\n\r\n" % (len(damaged), bytes(damaged)))
        handler.close_connection = True

    return fault


def problem(status: int, code: str, detail: str = "", **headers: str) -> Fault:
    """A problem document instead of an answer."""
    return lambda handler, asked: handler.send_problem(status, code, detail, **headers)


def reset_after(size: int) -> Fault:
    """The answer's first ``size`` bytes, then a reset."""

    def fault(handler: Handler, asked: Asked) -> None:
        handler.send_batch(handler.server.answer(asked), size=size)
        handler.reset()

    return fault


def hang(release: threading.Event) -> Fault:
    """The answer's first bytes, then silence until the test lets go."""

    def fault(handler: Handler, asked: Asked) -> None:
        handler.send_batch(handler.server.answer(asked), size=40)
        release.wait()
        handler.close_connection = True

    return fault
