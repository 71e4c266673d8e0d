"""An object store without a disk: the bytes of a key follow from its name, so there are more objects than any cache holds.

Signatures are not checked, as the drill tests the gateway's checks. A written object keeps its bytes until it is deleted.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

from aiohttp import web


@lru_cache(512)
def bytes_of(key: str) -> bytes:
    """The object of a key: ``name.SIZE`` has that many bytes."""
    size = int(key.rpartition(".")[2])
    return random.Random(key).randbytes(size)


class Origin:
    """The store; ``start`` returns its address.

    Attributes:
        requests: number of requests received.
    """

    def __init__(self) -> None:
        self.requests = 0
        self._written: dict[str, bytes] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen on a free port of loopback."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close every connection."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        key = request.match_info["path"].partition("/")[2]
        if request.method == "PUT":
            body = self._written[key] = await request.read()
            return web.Response(headers={"ETag": _etag(body)})
        if request.method == "DELETE":
            self._written.pop(key, None)
            return web.Response(status=204)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=501)
        try:
            body = self._written.get(key) or bytes_of(key)
        except ValueError:
            return web.Response(status=404, text=_NO_SUCH_KEY, content_type="application/xml")
        headers = {"ETag": _etag(body), "Last-Modified": "Mon, 02 Mar 2026 09:30:00 GMT"}
        wanted = request.http_range
        if wanted.start is None and wanted.stop is None:
            return web.Response(body=body, headers=headers)
        start = wanted.start or 0
        stop = min(len(body), wanted.stop or len(body))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        return web.Response(status=206, body=body[start:stop], headers=headers)


_NO_SUCH_KEY = "<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>"


@lru_cache(512)
def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
