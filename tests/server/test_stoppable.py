"""A server stops as soon as it is told to, whenever that is, and is not woken until then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import uvloop
from uvicorn.config import Config

from gateway.server.stoppable import StoppableServer


async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    """An application that answers nothing."""


class Counting(uvloop.Loop):
    """An event loop that counts the timers that are set."""

    timers = 0

    def call_later(self, delay: float, callback: Any, *arguments: Any, **options: Any) -> Any:
        """Count a timer, and set it."""
        self.timers += 1
        return super().call_later(delay, callback, *arguments, **options)


async def begun(server: StoppableServer) -> asyncio.Task[None]:
    """The main loop of a server, which waits."""
    running = asyncio.ensure_future(server.main_loop())
    while server._serving is None:  # noqa: ASYNC110  # a turn of the event loop, no time
        await asyncio.sleep(0)
    return running


@pytest.fixture
def server() -> StoppableServer:
    """A server without sockets."""
    return StoppableServer(Config(nothing, log_config=None))


def test_a_server_sets_no_timer_while_it_serves(server: StoppableServer) -> None:
    """Rule: a server that has nothing to do wakes nobody, until another thread stops it."""
    loop = Counting()

    async def serve() -> None:
        running = await begun(server)
        stopping = threading.Thread(target=setattr, args=(server, "should_exit", True))
        stopping.start()
        await running
        stopping.join()

    try:
        loop.run_until_complete(serve())
    finally:
        loop.close()
    assert server.should_exit
    assert not loop.timers


async def test_a_stop_before_the_server_waits_counts(server: StoppableServer) -> None:
    """Rule: a signal that arrives between the start of the application and the wait for signals stops the server."""
    server.should_exit = True
    await server.main_loop()
    assert server.should_exit


async def test_further_stops_of_a_stopped_server_do_nothing(server: StoppableServer) -> None:
    """Rule: a second signal, which finds the server no longer waiting, is no error."""
    running = await begun(server)
    server.should_exit = True
    server.should_exit = True
    await running
    server.should_exit = True
    assert server.should_exit
