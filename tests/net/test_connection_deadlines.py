"""The deadline of a connection to an origin or a node, in each of its states (docs/decisions/0046)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.net.deadlines import NEVER
from tests.net.wire import Played

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + b"a" * 11
SILENCE, WITHIN, IDLE = 60.0, 20.0, 15.0


def left(played: Played) -> float:
    """Seconds to the deadline."""
    return played.connection.deadline - asyncio.get_running_loop().time()


def kept() -> Played:
    """A connection whose first exchange has ended."""
    played = Played(silence=SILENCE, within=WITHIN, buffer=10)
    played.hear([EMPTY])
    return played


def asked(*, streamed: bool) -> Played:
    """A kept connection that was asked again."""
    played = kept()
    played.ask(streamed=streamed)
    return played


def sent() -> Played:
    """One that has sent a streamed body."""
    played = asked(streamed=True)
    played.connection.sent(WITHIN)
    return played


def answered_early() -> Played:
    """One whose peer begins its answer before the body of the request is complete."""
    played = asked(streamed=True)
    played.hear([BEGUN[:-5]])
    return played


def behind(*, streamed: bool) -> Played:
    """One whose reader is behind."""
    played = asked(streamed=streamed)
    played.hear([BEGUN])
    return played


def resumed(*, streamed: bool) -> Played:
    """One whose reader has caught up."""
    played = behind(streamed=streamed)
    played.connection.resume()
    return played


STATES: list[tuple[str, Callable[[], Played], float]] = [
    ("kept, idle", kept, IDLE),
    ("head awaited", lambda: asked(streamed=False), WITHIN),
    ("the request's body is sent", lambda: asked(streamed=True), NEVER),
    ("the request's body was sent", sent, WITHIN),
    ("answered before the body was sent", answered_early, NEVER),
    ("reader behind", lambda: behind(streamed=False), NEVER),
    ("reader behind while the body is sent", lambda: behind(streamed=True), NEVER),
    ("reader has caught up", lambda: resumed(streamed=False), SILENCE),
    ("reader has caught up while the body is sent", lambda: resumed(streamed=True), NEVER),
]


@pytest.mark.parametrize(("state", "seconds"), [state[1:] for state in STATES], ids=[state[0] for state in STATES])
async def test_each_state_has_its_own_deadline(state: Callable[[], Played], seconds: float) -> None:
    """Rule: a state sets its own deadline, whatever the state before had; none while a client is waited for."""
    played = state()
    assert left(played) == (NEVER if seconds is NEVER else pytest.approx(seconds, abs=1.0))


async def test_a_peer_that_takes_no_body_has_a_deadline() -> None:
    """Rule: the peer has ``patience`` to take a piece; what the client needs for the next one does not count."""
    played = asked(streamed=True)
    played.connection.pause_writing()
    writing = asyncio.create_task(played.connection.write(b"piece", 7.0))
    await asyncio.sleep(0)
    assert left(played) == pytest.approx(7.0, abs=1.0)
    played.connection.resume_writing()
    await writing
    assert left(played) == NEVER
