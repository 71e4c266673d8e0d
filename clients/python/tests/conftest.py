"""Servers that behave as a gateway does, or does not."""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_gateway import FakeBatchGateway, Store, serving
from fake_jobs import FakeJobs
from hypothesis import HealthCheck, settings

# Whether a property holds does not depend on how fast the machine is.
settings.register_profile("larder", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make fuzz`: new examples in every run, and many.
settings.register_profile("fuzz", settings.get_profile("larder"), max_examples=5000, derandomize=False, database=None)
settings.load_profile("larder")

Answers = dict[str, tuple[int, bytes]]


def pytest_configure() -> None:
    """Handle SIGINT as from a terminal. Started by nohup, cron or a shell's ``&``, pytest and all it starts would ignore it.

    Spawned processes import the file of the main module, which is pytest: a third of a second each, for nothing.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules["__main__"].__file__ = None


class FakeGateway(ThreadingHTTPServer):
    """A server with prepared answers; counts requests, and breaks the next ``breaks`` connections."""

    daemon_threads = True

    def __init__(self, answers: Answers, breaks: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.breaks = breaks
        self.requests = 0
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeGateway

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.server.breaks:
            self.server.breaks -= 1
            self.close_connection = True
            return
        status, body = self.server.answers.get(self.path, (404, b"<Error/>"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Callable[..., FakeGateway]]:
    """Start a fake gateway: ``gateway({"/-/readyz": (200, {...})}, breaks=1)``."""
    with ExitStack() as stack:

        def start(answers: dict[str, tuple[int, object]], breaks: int = 0) -> FakeGateway:
            encoded = {
                path: (status, body if isinstance(body, bytes) else json.dumps(body).encode())
                for path, (status, body) in answers.items()
            }
            server = stack.enter_context(FakeGateway(encoded, breaks))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server

        yield start


@pytest.fixture
def jobs() -> Iterator[FakeJobs]:
    """Jobs in memory, served."""
    with serving(FakeBatchGateway(Store({}))) as server:
        found = FakeJobs()
        server.other = found
        found.endpoint, found.server = server.endpoint, server
        yield found
