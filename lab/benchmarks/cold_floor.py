"""The floor under a cold GET: each necessary step alone, in one thread, with nothing around it.

The sum is a floor for a gateway in Python with these libraries: no event loop, no second thread, no decision, no metric, no log.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from zlib import crc32

import httptools

from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef, ObjectMeta
from gateway.origin.credentials import Keys
from gateway.origin.signing import Signer
from gateway.store.index import recording
from gateway.store.index.blob_rows import Kept
from gateway.store.index.index_file import ensure_index
from gateway.store.index.recording import Recording
from gateway.store.index.schema import driver_of, open_engine, prepare_connection
from lab.benchmarks.servers import BUCKET

ROUNDS = 5
TOGETHER = 50
"""Objects of one transaction: as many as arrive in 30 ms."""
_MOST = 1 << 20
_HEADERS = (("Content-Type", "application/octet-stream"), ("Accept-Ranges", "bytes"))


class _Head:
    """Receives httptools' events for the head of an answer."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers.append((name, value))


def _each(count: int, step: Callable[[int], object]) -> float:
    """CPU microseconds of this thread for one call of ``step``, the median over rounds; each call gets another number."""
    rounds = []
    for turn in range(ROUNDS):
        began = time.thread_time()
        for number in range(count):
            step(turn * count + number)
        rounds.append((time.thread_time() - began) / count * 1e6)
    return median(rounds)


def _signing() -> float:
    signer, keys = Signer(time.time), Keys("origin", "origin-secret")

    def sign(number: int) -> None:
        headers = [("x-amz-checksum-mode", "ENABLED")]
        path = f"/{BUCKET}/{number}"
        signer.signed("GET", path, "", headers, keys, "o", "us-east-1", "UNSIGNED-PAYLOAD")

    return _each(500, sign)


def _fetching(port: int, key: str, length: int) -> float:
    request = f"GET /{BUCKET}/{key} HTTP/1.1\r\nHost: origin\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def fetch(_number: int) -> None:
            connection.sendall(request)
            data = connection.recv(_MOST)
            head = data.find(b"\r\n\r\n") + 4
            httptools.HttpResponseParser(_Head()).feed_data(data[:head])
            left = length - len(data) + head
            while left:
                left -= len(connection.recv(_MOST))

        return _each(200, fetch)


def _storing(directory: Path, data: bytes) -> float:
    (directory / "tmp").mkdir()
    (directory / "blobs").mkdir()

    def store(number: int) -> None:
        path = f"{directory}/tmp/{number:x}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(descriptor, data)
        os.fstat(descriptor)
        os.rename(path, f"{directory}/blobs/{number:x}")
        os.close(descriptor)

    return _each(200, store)


def _recording(directory: Path) -> float:
    index, file = directory / "index.db", directory / "file"
    file.write_bytes(b"x")
    ensure_index(index, None)
    connection = open_engine(index, patience=60.0).connect()
    prepare_connection(connection)
    driver, now = driver_of(connection), time.time()
    path, mtime_ns = str(file), file.stat().st_mtime_ns

    def new(number: int) -> Recording:
        kept = Kept(BlobRef(hashlib.sha256(b"%d" % number).digest(), 1, 1), lambda _: path, mtime_ns, 1)
        meta = ObjectMeta(f'"{number:x}"', 1, "", _HEADERS, ())
        return Recording(
            ObjectKey("o", BUCKET, f"{number:x}"), meta, 4096, {0: kept}, now, {"o": now}, now, lambda: True
        )

    def record(number: int) -> None:
        driver.execute("BEGIN IMMEDIATE")
        recording.record(driver, [new(number * TOGETHER + each) for each in range(TOGETHER)], 2**60, time.time)
        driver.execute("COMMIT")

    try:
        return _each(30, record) / TOGETHER
    finally:
        connection.close()


def _sending(data: bytes) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taking = socket.create_connection(server.getsockname())
        out, _ = server.accept()

        def drain() -> None:
            while taking.recv(_MOST):
                pass

        thread = threading.Thread(target=drain)
        thread.start()

        def send(_number: int) -> None:
            head = b"HTTP/1.1 200 OK\r\n\r\n"
            sent = out.sendmsg((head, data)) - len(head)
            while sent < len(data):
                sent += out.send(memoryview(data)[sent:])

        try:
            return _each(200, send)
        finally:
            out.close()
            thread.join()
            taking.close()


def measure(directory: Path, port: int, key: str, data: bytes) -> dict[str, float]:
    """CPU microseconds of each step for an object.

    Args:
        directory: on the disk of the cache; files are created in it.
        port: of the origin.
        key: of an object of the origin's with these bytes.
        data: its bytes.
    """
    directory.mkdir()
    return {
        "sign the request to the origin": _signing(),
        "send it, parse the head of its answer, receive the body": _fetching(port, key, len(data)),
        "SHA-256": _each(200, lambda _number: hashlib.sha256(data).digest()),
        "CRC-32": _each(200, lambda _number: crc32(data)),
        "create, write and rename the file": _storing(directory, data),
        f"its rows, {TOGETHER} objects a transaction": _recording(directory),
        "send head and body": _sending(data),
    }
