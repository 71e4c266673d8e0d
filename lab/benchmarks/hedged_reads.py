"""The slowest hundredth of misses with and without `hedge = "p95"`, from a store of which 2 % of answers take 20 times as
long."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

from lab.benchmarks.load import raw_request
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import Running, gateway

WAITS, SLOW, SHARE = 0.02, 20, 0.02
OBJECTS = 2000
CONNECTIONS = 16
REPEATS = 3
LENGTH = 4096
BUDGET = 0.3
SIDES = {"plain": "", "hedged": 'hedge = "p95"'}
"""Settings of each side's rule."""
_ANSWER = b'HTTP/1.1 200 OK\r\nETag: "of-all"\r\nContent-Length: %d\r\n\r\n' % LENGTH + bytes(LENGTH)


class _Store:
    """Answers every request with the same object; counts the requests."""

    def __init__(self) -> None:
        self.requests = 0
        self._random = random.Random(7)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                await asyncio.sleep(WAITS * (SLOW if self._random.random() < SHARE else 1))
                writer.write(_ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def _latencies(port: int, keys: Sequence[str]) -> list[float]:
    """Milliseconds of a GET of each key, over ``CONNECTIONS`` connections; every answer must be a whole 200."""
    waiting, taken = iter([raw_request(port, key) for key in keys]), []

    async def one_connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in waiting:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            await reader.readexactly(LENGTH)
            taken.append((time.perf_counter() - began) * 1e3)
        writer.close()

    await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))
    return taken


async def _rounds(directory: Path) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """By side, for each round: the 99th percentile in milliseconds, and the requests at the store per object."""
    late: dict[str, list[float]] = {side: [] for side in SIDES}
    asked: dict[str, list[float]] = {side: [] for side in SIDES}
    store = _Store()
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with ExitStack() as stack:
        gateways = {
            side: await asyncio.to_thread(_started, stack, directory / side, port, SIDES[side]) for side in SIDES
        }
        for turn in range(REPEATS + 1):
            for side, running in gateways.items():
                before = store.requests
                taken = await _latencies(running.port, [f"{turn}-{number}" for number in range(OBJECTS)])
                late[side].append(quantiles(taken, n=100)[98])
                asked[side].append((store.requests - before) / OBJECTS)
    server.close()
    # Before the first round, the gateway does not know yet which reads are late.
    return {side: late[side][1:] for side in SIDES}, {side: asked[side][1:] for side in SIDES}


def _started(stack: ExitStack, directory: Path, port: int, setting: str) -> Running:
    directory.mkdir()
    return stack.enter_context(gateway(directory, port, extra=setting))


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary:
        late, asked = asyncio.run(_rounds(Path(temporary)))
    ratio = Ratio.compared("p99 of misses: hedged / not", late["hedged"], late["plain"], BUDGET)
    more = Ratio.compared("requests at the store: hedged / not", asked["hedged"], asked["plain"], 1.06)
    data = {"connections": CONNECTIONS, "repeats": REPEATS, "objects": OBJECTS, "p99_ms": late, "requests": asked}
    write("hedged_reads", data, where, [ratio, more])


if __name__ == "__main__":
    run()
