"""Hits of the hot path in the S3 edge: recorded, sent and accounted for, in each of the three ways."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.api.s3.access_log import AccessLog
from gateway.api.s3.accounting import Accounting
from gateway.api.s3.app import ReadPaths, S3App
from gateway.api.s3.auth import Authenticator
from gateway.api.s3.hot import Hit
from gateway.base.config import Credential, Origin, Settings
from gateway.base.config_server import ServerSettings
from gateway.engine.operations.live import LiveRequests
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.engine.operations.traffic import TrafficTally
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome
from gateway.server.asgi_types import Message
from gateway.server.cycle import FILES
from rig.signed_requests import ClientSigner

KEY = ObjectKey("default", "bucket", "dir/key")
HIT = Hit(KEY, 206, b"content-length: 30\r\n", 30, (10, 40, 100), [(7, 10, 30)], [])


class PromptEdge:
    """The S3 edge, whose short path finds ``HIT`` for every request."""

    def __init__(self, home: Path) -> None:
        settings = Settings(
            server=ServerSettings(),
            origins=(Origin(endpoint="http://127.0.0.1:1", access_key_id="OK", secret_access_key="os"),),
            credentials=(Credential(access_key_id="AK", secret_access_key="secret", tenant="vision"),),
        )
        self.noted: list[tuple[Any, ...]] = []
        self.sent: list[Any] = []
        self.tally = TrafficTally(time.monotonic)
        self.log = home / "access.log"
        self.access = AccessLog(str(self.log))
        nobody = cast(Any, None)
        self.engine = SimpleNamespace(hits=nobody, entries_kept=1)
        self.app = S3App(
            Authenticator(settings),
            ReadPaths(
                cast(Any, self),
                nobody,
                nobody,
                nobody,
                nobody,
                nobody,
                nobody,
                nobody,
                lambda *read: self.noted.append(read),
            ),
            nobody,
            Accounting(
                "node", self.access, self.tally, LiveRequests(nobody), TenantRates(nobody, "worker", time.monotonic)
            ),
            settings.server,
            nobody,
        )

    def find(self, *_asked: object) -> Hit:
        """In the place of ``HotReads``."""
        return HIT

    async def get(self, *, at_once: bool, waits: bool) -> None:
        """Answer a signed request as the protocol does: at once, perhaps with a rest to wait for, or in a task."""
        request = ClientSigner().header("GET", "http://127.0.0.1:9000/bucket/dir/key")
        scope: dict[str, Any] = {
            "type": "http", "method": "GET", "raw_path": request.raw_path, "query_string": b"", "scheme": "http",
            "headers": request.headers, "extensions": {FILES: {}}, "client": ("127.0.0.1", 5),
        }  # fmt: skip

        async def rest() -> None:
            self.sent.append("rest")

        def send_files(status: int, head: bytes, files: object, memory: object) -> Awaitable[None] | None:
            self.sent.append((status, files))
            return rest() if waits else None

        async def send(message: Message) -> None:
            self.sent.append((message["status"], message["files"]))

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        left = self.app.begin(scope, receive, send, send_files) if at_once else self.app(scope, receive, send)
        if left is not None:
            await left


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[PromptEdge]:
    """An edge with its log."""
    made = PromptEdge(tmp_path)
    yield made
    made.access.close()


@pytest.mark.parametrize(("at_once", "waits"), [(True, False), (True, True), (False, False)])
async def test_a_hit_is_noted_and_accounted_for_once(edge: PromptEdge, at_once: bool, waits: bool) -> None:
    """Rule: a hit by any route counts as one recorded read, one log line, and one request of its bucket."""
    await edge.get(at_once=at_once, waits=waits)
    assert edge.sent == [(206, HIT.files), *(["rest"] if waits else [])]
    assert [(*read[:5], read[6]) for read in edge.noted] == [(KEY, 10, 40, 100, True, "AK")]
    (line,) = edge.log.read_text().splitlines()
    assert line.startswith("- bucket [")
    assert " REST.GET.OBJECT dir/key " in line
    assert " 206 - 30 - " in line
    assert line.endswith('"HIT"')
    traffic = edge.tally.kinds["vision", "bucket", Outcome.HIT]
    assert (traffic.requests, traffic.sent) == (1, 30)
    assert edge.app.in_flight == 0
