"""A small S3 server in the test's own process: real HTTP, real signatures, objects in memory, faults on demand.

It answers like S3 (tests/contracts/test_origin_contract.py checks that, for moto and radosgw too), records every request, and
injects the faults given to ``inject``. It runs in the event loop that called ``start``; ``OriginThread`` gives it a separate loop
for tests with a blocking S3 client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self, TypeVar
from urllib.parse import unquote

from aiohttp import web

from rig.origin_auth import OriginRefusal, OriginRequest, User, authenticate
from rig.origin_faults import (
    ChangedEtag,
    DieAfter,
    DieBeforeHeaders,
    ErrorIn200,
    Fault,
    Hang,
    Refuse,
    Trickle,
    WrongContentRange,
)
from rig.origin_pace import PIECE, SendingPace
from rig.origin_s3 import Buckets, OriginAnswer, Stored, error

_LONGEST = 128 * 1024
_MOST_BODY = 1 << 30
_PAYER = "x-amz-request-payer"
ALICE = User("origin-key-a", "origin-secret-a")
BOB = User("origin-key-b", "origin-secret-b")

_F = TypeVar("_F", bound=Fault)


@dataclass(frozen=True)
class SeenRequest:
    """One request that the origin received; ``access_key_id`` is empty when it was unsigned or refused."""

    method: str
    raw_path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    status: int
    access_key_id: str
    size: int

    def header(self, name: str) -> str:
        """The first value (lower-case name), or ``""``."""
        return next((value for candidate, value in self.headers if candidate == name), "")


class FakeOrigin:
    """An S3 server on 127.0.0.1; ``port`` stays the same over ``stop`` and ``start``.

    Args:
        users: who may sign; unsigned requests are refused outside ``public``.
    """

    def __init__(self, users: Sequence[User] = (ALICE, BOB)) -> None:
        self.users = list(users)
        self.buckets = Buckets()
        self.port = 0
        self.seen: list[SeenRequest] = []
        self.public: list[str] = []
        self.owners: dict[str, User] = {}
        """The owners of requester-pays buckets: other users' requests that do not accept the charges are refused."""
        self.paces: dict[str, SendingPace] = {}
        """The pace of bodies below a raw path prefix; faults inside a body only apply to bodies without a pace."""
        self._denied: list[tuple[str, str]] = []
        self._faults: list[Fault] = []
        self._runner: web.ServerRunner | None = None

    @property
    def endpoint(self) -> str:
        """The address for ``[[origins]]``."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; on the same port as before after a ``stop``."""
        server = web.Server(self._handle, auto_decompress=False, max_line_size=_LONGEST, max_field_size=_LONGEST)
        self._runner = web.ServerRunner(server, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuse new connections and drop open ones. Objects and records stay."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def put(self, bucket: str, key: str, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> Stored:
        """Store an object without a client's request."""
        return self.buckets.put(bucket, key, body, headers)

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object without a client's request."""
        self.buckets.objects[bucket].pop(key, None)

    def deny(self, access_key_id: str, pattern: str) -> None:
        """Refuse a user everything below ``bucket/key`` globs (``*`` crosses "/"); an empty user means unsigned requests."""
        self._denied.append((access_key_id, pattern))

    def allow_again(self) -> None:
        """Take back every ``deny``."""
        self._denied.clear()

    def inject(self, fault: _F) -> _F:
        """Inject a fault into the next matching requests; returns the fault."""
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget all faults that have not happened yet."""
        self._faults.clear()

    def count(self, method: str = "", path: str = "/") -> int:
        """Number of requests of a method (empty for any) that arrived below a raw path prefix."""
        return sum(1 for seen in self.seen if method in ("", seen.method) and seen.raw_path.startswith(path))

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        raw_path, _, query = request.raw_path.partition("?")
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("utf-8").strip()) for name, value in request.raw_headers
        )
        body = await self._body(request)
        asked = OriginRequest(request.method, raw_path, query, headers, body)
        faults = [fault for fault in self._faults if fault.take(asked.method, raw_path)]
        access_key_id, answer = self._answer(asked, faults)
        self.seen.append(SeenRequest(asked.method, raw_path, query, headers, answer.status, access_key_id, len(body)))
        pace = next((pace for prefix, pace in self.paces.items() if raw_path.startswith(prefix)), None)
        return await _send(request, answer, faults, pace)

    async def _body(self, request: web.BaseRequest) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size > _MOST_BODY:
                raise web.HTTPRequestEntityTooLarge(_MOST_BODY, size)
            pieces.append(piece)
        return b"".join(pieces)

    def _answer(self, asked: OriginRequest, faults: list[Fault]) -> tuple[str, OriginAnswer]:
        access_key_id = ""
        try:
            access_key_id = authenticate(asked, self.users)
            self._authorize(asked, access_key_id)
            for fault in faults:
                if isinstance(fault, Refuse):
                    raise OriginRefusal(fault.status, fault.code)
                if isinstance(fault, ErrorIn200):
                    raise OriginRefusal(200, fault.code)
            answer = self.buckets.answer(asked)
            if asked.bucket in self.owners and asked.header(_PAYER) == "requester":
                answer.headers.append(("x-amz-request-charged", "requester"))
        except OriginRefusal as refused:
            answer = error(refused.status, refused.code, refused.message)
        except ValueError:
            answer = error(400, "InvalidArgument")
        for fault in faults:
            _distort(answer, fault)
        return access_key_id, answer

    def _authorize(self, asked: OriginRequest, access_key_id: str) -> None:
        path = unquote(asked.raw_path[1:])
        if any(who == access_key_id and fnmatchcase(path, pattern) for who, pattern in self._denied):
            raise OriginRefusal(403, "AccessDenied")
        owner = self.owners.get(asked.bucket)
        if owner is not None and owner.access_key_id != access_key_id and asked.header(_PAYER) != "requester":
            raise OriginRefusal(403, "AccessDenied")
        if not access_key_id and not any(fnmatchcase(path, pattern) for pattern in self.public):
            raise OriginRefusal(403, "AccessDenied")
        if not access_key_id and any(name.startswith("response-") for name in asked.parameters):
            raise OriginRefusal(400, "InvalidRequest")


def _distort(answer: OriginAnswer, fault: Fault) -> None:
    changes = {}
    if isinstance(fault, WrongContentRange) and answer.status == 206:
        changes = {"content-range": fault.value}
    if isinstance(fault, ChangedEtag) and answer.status < 300:
        changes = {"etag": fault.etag}
    answer.headers = [(name, changes.get(name.lower(), value)) for name, value in answer.headers]


async def _send(
    request: web.BaseRequest, answer: OriginAnswer, faults: list[Fault], pace: SendingPace | None
) -> web.StreamResponse:
    if pace is not None:
        await pace.before_answer()
    for fault in faults:
        if isinstance(fault, Hang) and fault.after < 0:
            await fault.gate.pass_through()
        if isinstance(fault, DieBeforeHeaders):
            _reset(request)
    response = web.StreamResponse(status=answer.status)
    for name, value in answer.headers:
        response.headers.add(name, value)
    response.headers["Server"] = "FakeOrigin"
    response.headers["x-amz-request-id"] = "FAKE0000000000000"
    if answer.status not in (204, 304):
        response.content_length = len(answer.body)
    await response.prepare(request)
    if request.method != "HEAD" and answer.body:
        if pace is not None:
            await _send_paced(response, answer.body, pace)
        else:
            await _send_body(request, response, answer.body, faults)
    await response.write_eof()
    return response


async def _send_paced(response: web.StreamResponse, body: bytes, pace: SendingPace) -> None:
    for start in range(0, len(body), PIECE):
        piece = body[start : start + PIECE]
        await pace.send(len(piece))
        await response.write(piece)


async def _send_body(request: web.BaseRequest, response: web.StreamResponse, body: bytes, faults: list[Fault]) -> None:
    stops = {min(f.after, len(body)): f for f in faults if isinstance(f, Hang) and f.after >= 0}
    trickle = next((f for f in faults if isinstance(f, Trickle)), None)
    death = min((f.size for f in faults if isinstance(f, DieAfter)), default=len(body) + 1)
    at = 0
    while at < len(body):
        if at in stops:
            await stops[at].gate.pass_through()
        if at >= death:
            break
        ends = [len(body), death, *(stop for stop in stops if stop > at)]
        end = min(at + trickle.piece, *ends) if trickle else min(ends)
        await response.write(body[at:end])
        at = end
        if trickle:
            await asyncio.sleep(trickle.pause)
    if death <= len(body):
        _reset(request)


def _reset(request: web.BaseRequest) -> None:
    if request.transport is not None:
        # close() sends written bytes before it ends the connection; abort() would lose them.
        request.transport.close()
    raise ConnectionResetError("this is what the test asked for")


class OriginThread:
    """A FakeOrigin with its own thread and event loop: ``with OriginThread() as origin``."""

    def __init__(self, users: Sequence[User] = (ALICE, BOB)) -> None:
        self._origin = FakeOrigin(users)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-origin", daemon=True)

    def run(self, make: Callable[[], Any]) -> Any:
        """Run a coroutine function of the origin, such as ``origin.stop``, in its loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(30)

    def __enter__(self) -> FakeOrigin:
        self._thread.start()
        self.run(self._origin.start)
        return self._origin

    def __exit__(self, *_: object) -> None:
        self.run(self._origin.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
