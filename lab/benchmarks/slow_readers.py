"""Memory of the gateway under 500 slow readers of a 64 MiB object.

Every reader has a small receive buffer and takes 16 KiB now and then. The resident memory of the gateway's process tree
is compared with that just before the readers connect; the object is cached.
"""

from __future__ import annotations

import selectors
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from lab.benchmarks.load import raw_request
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import Running, gateway, origin

READERS = 500
LENGTH = 64 * 1024**2
SECONDS = 10.0
SIP = 16 * 1024
BUDGET = 100 * 10**6


def _read_whole(port: int, key: str) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(raw_request(port, key))
        left = LENGTH
        while left > 0:
            piece = sock.recv(1 << 20)
            if not piece:
                raise RuntimeError("the object was cut short")
            left -= len(piece)


def _slow_reader(port: int, request: bytes) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    sock.connect(("127.0.0.1", port))
    sock.sendall(request)
    return sock


def _sip(readers: list[socket.socket], server: Running) -> tuple[int, int, float]:
    """Read a little over each connection in turn; returns the most memory seen, the bytes read, and the CPU seconds used."""
    most = total = 0
    cpu = server.cpu_seconds()
    started = set()
    deadline = time.monotonic() + SECONDS
    with selectors.DefaultSelector() as selector:
        for each in readers:
            selector.register(each, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            for ready, _ in selector.select(0.1):
                piece = ready.fileobj.recv(SIP)  # type: ignore[union-attr]
                if not piece:
                    raise RuntimeError("a reader was cut off")
                total += len(piece)
                started.add(ready.fd)
            most = max(most, server.rss())
            time.sleep(0.2)
    if len(started) < len(readers):
        raise RuntimeError(f"{len(readers) - len(started)} readers never got a byte")
    return most, total, server.cpu_seconds() - cpu


def run() -> int:
    """Measure and write the results; returns the growth in bytes."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        key = make_many(root, "large", 1, LENGTH)[0]
        source = stack.enter_context(origin(directory, root))
        server = stack.enter_context(gateway(directory, source.port))
        for _ in range(2):
            _read_whole(server.port, key)
        before = server.rss()
        request = raw_request(server.port, key)
        readers = [stack.enter_context(_slow_reader(server.port, request)) for _ in range(READERS)]
        most, total, cpu = _sip(readers, server)
    growth = most - before
    data = {
        "readers": READERS,
        "seconds": SECONDS,
        "rss_before": before,
        "rss_most": most,
        "growth": growth,
        "bytes_read": total,
        "cpu_seconds": cpu,
    }
    ratio = Ratio(f"MB of memory that {READERS} slow readers take", growth / 1e6, BUDGET / 1e6)
    write("slow_readers", data, where, [ratio])
    return growth


if __name__ == "__main__":
    run()
