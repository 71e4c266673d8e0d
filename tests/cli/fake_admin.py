"""A fake ``/-/admin`` with prepared answers, for conditions that are rare in a real gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

TOKEN = "an-admin-token"


@dataclass
class Asked:
    """One request that came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


Answer = Callable[["FakeAdmin", Asked], tuple[int, Any]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeAdmin

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        text = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        asked = Asked(
            self.command,
            parts.path.removeprefix("/-/admin/"),
            dict(parse_qsl(parts.query)),
            {name.lower(): value for name, value in self.headers.items()},
            json.loads(text) if text else None,
        )
        with self.server.lock:
            self.server.asked.append(asked)
            if self.server.breaks:
                self.server.breaks -= 1
                self.close_connection = True
                return
            status, document = self.server.answer(asked)
        kind = "application/json" if status < 300 else "application/problem+json"
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if isinstance(document, bytes) else kind)
        self.send_header("Content-Length", str(len(body)))
        if self.server.stale:
            self.send_header("x-larder-stale", self.server.stale)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


class FakeAdmin(ThreadingHTTPServer):
    """Answers from ``answers``, which maps ``"GET overview"`` to a document or a function; records requests in ``asked``.

    ``breaks``: the number of requests that are accepted and not answered. ``stale``: the lost service that makes answers old.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Any] = {}
        self.asked: list[Asked] = []
        self.breaks = 0
        self.stale = ""
        self.lock = threading.Lock()
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, asked: Asked) -> tuple[int, Any]:
        """Status and document of an answer."""
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return problem(401, "Unauthorized", "Unknown token.")
        found = self.answers.get(f"{asked.method} {asked.path}")
        if found is None:
            return problem(404, "NotFound", f"Unknown address {asked.path}.")
        if callable(found):
            status, document = found(asked)
            return status, document
        return 200, found


def problem(status: int, code: str, detail: str) -> tuple[int, dict[str, Any]]:
    """A problem document."""
    return status, {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail}


@contextmanager
def serving(server: FakeAdmin) -> Iterator[FakeAdmin]:
    """Run it in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


OVERVIEW: dict[str, Any] = {
    "at": "2026-11-20T20:00:00Z",
    "zone": "rack-1",
    "version": "0.5.0",
    "nodes": [
        {
            "id": "node-1", "address": "http://10.0.0.11:9000", "state": "READY", "capacity": 1_000_000_000,
            "bytes": 250_000_000, "blobs": 1234, "disk": "normal", "redis": True, "version": "0.5.0",
            "uptime_seconds": 93_784.5,
        },
        {
            "id": "node-2", "address": "http://10.0.0.12:9000", "state": "LEAVING", "capacity": 1_000_000_000,
            "bytes": 0, "blobs": 0, "disk": "down", "redis": False, "version": "0.5.0", "uptime_seconds": 4,
        },
    ],
    "now": {
        "requests_per_second": 12.5, "batch_items_per_second": 2310.5, "hit_ratio": 0.912, "cache_bytes_per_second": 1e9,
        "origin_bytes_per_second": 1e7, "origin_requests_per_second": 3.2,
    },
    "total": {
        "requests": 100_000, "hits": 90_000, "sent_bytes": 10**12, "origin_bytes": 10**11, "saved_bytes": 9 * 10**11,
        "batch_items": 3_120_448, "batch_hits": 2_968_114,
    },
    "jobs": [
        {
            "tenant": "vision", "job": "resnet50", "dataset": "ab" * 6, "dataset_name": "imagenet", "gpus": 8, "ranks": 8,
            "epoch": 3, "phase": "steady", "cache": True, "t_miss": 0.62, "t_hit": 0.27, "benefit": 2.3,
            "silent_seconds": 0.4,
        }
    ],
    "datasets": [
        {
            "id": "ab" * 6, "names": ["imagenet"], "items": 1_281_167, "bytes": 140 * 10**9, "caching": "part",
            "why": "benefit", "granted": 28 * 10**9, "resident_share": 0.2,
        }
    ],
    "problems": [],
}  # fmt: skip
"""An answer of GET /-/admin/overview for a fleet at work."""

ILL: dict[str, Any] = {
    **OVERVIEW,
    "problems": [
        {
            "severity": "error", "since": "2026-11-20T19:58:00Z", "what": "the disk of the cache is down",
            "remedy": "look at its mount", "node": "node-2",
        }
    ],
}  # fmt: skip
"""The same with a problem."""
