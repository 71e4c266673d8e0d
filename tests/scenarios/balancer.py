"""A load balancer as small as can be: it polls /-/readyz, and passes connections on to the gateways that are ready."""

from __future__ import annotations

import http.client
import itertools
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from rig.gateways import Running

_PIECE = 1 << 16
_SURE = 10
"""Answers in a row."""


class Balancer:
    """A load balancer on a new port.

    Args:
        ports: where the gateways listen.

    Attributes:
        ready: by port, the status of the last answer to a poll; 0 without an answer.
        underway: by port, the number of open connections to the gateway.
        refused: the number of connections refused by a gateway that counted as ready.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.ready = dict.fromkeys(ports, 0)
        self.underway = dict.fromkeys(ports, 0)
        self.refused = 0
        self._draining = dict.fromkeys(ports, 0)
        self._turns = itertools.count()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads = [threading.Thread(target=self._poll, args=(port,)) for port in ports]
        self._threads.append(threading.Thread(target=self._accept))

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def left(self, running: Running) -> bool:
        """True if a gateway has reported draining often enough to include all of its workers, and has no open connections."""
        with self._lock:
            return self._draining[running.port] >= _SURE and self.underway[running.port] == 0

    def _poll(self, port: int) -> None:
        while not self._over.wait(0.02):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                connection.request("GET", "/-/readyz")
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                status = 0
            finally:
                connection.close()
            with self._lock:
                self._draining[port] = self._draining[port] + 1 if status == 503 else 0
                self.ready[port] = status

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,)).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, self._lock:
            able = [port for port, status in self.ready.items() if status == 200]
            port = able[next(self._turns) % len(able)]
            self.underway[port] += 1
            client = client.dup()
        try:
            with client, socket.create_connection(("127.0.0.1", port), timeout=60) as gateway:
                answers = threading.Thread(target=_pump, args=(gateway, client))
                answers.start()
                _pump(client, gateway)
                answers.join()
        except OSError:
            self.refused += 1
        finally:
            with self._lock:
                self.underway[port] -= 1


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(_PIECE):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
