"""The wrapper of every edge: counting, shedding, refusing, breaking off."""

from __future__ import annotations

import json
import logging

import pytest

from gateway.edge.asgi import Edge, Headers
from gateway.model.datasets import ApiError
from gateway.model.errors import BrokenBody, ClientGone, LarderError, OriginBusy, OriginUnavailable
from gateway.server.asgi_types import Message, Receive, Scope, Send
from gateway.wiring.problems import overload_troubles

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


class FailingEdge(Edge):
    """Begins an answer, or not, and raises the given failure."""

    def __init__(self, failure: Exception, *, begins: bool = False, limit: float = 1) -> None:
        super().__init__(logging.getLogger(__name__), limit)
        self._failure = failure
        self._begins = begins

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Fail."""
        if self._begins:
            await send({**START})
        raise self._failure

    def headers(self, scope: Scope, status: int) -> Headers:
        """The status again."""
        return ((b"x-status", b"%d" % status),)


async def answered(edge: Edge) -> list[Message]:
    """The messages of the answer to a request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await edge({"type": "http", "method": "GET", "path": "/"}, receive, send)
    return sent


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ApiError("NotFound"), 404, "NotFound"),
        (OriginUnavailable("refused"), 503, "ServiceUnavailable"),
        (OriginBusy("all connections are in use"), 503, "SlowDown"),
        (LarderError("lost a race"), 503, "SlowDown"),
    ],
)
async def test_a_failure_before_the_answer_is_a_problem(failure: Exception, status: int, code: str) -> None:
    """Rule: a failure before the first byte is answered with a problem document, with the edge's headers."""
    edge = FailingEdge(failure)
    start, body = await answered(edge)
    assert (start["status"], json.loads(body["body"])["code"]) == (status, code)
    assert dict(start["headers"])[b"x-status"] == b"%d" % status
    assert edge.in_flight == 0


async def test_a_failure_within_the_answer_breaks_it_off() -> None:
    """Rule: a failure after the first byte breaks the connection."""
    edge = FailingEdge(OriginUnavailable("broke off"), begins=True)
    with pytest.raises(BrokenBody, match="broke off"):
        await answered(edge)
    assert edge.in_flight == 0


@pytest.mark.parametrize("failure", [ClientGone("left"), BrokenBody("broke off")])
async def test_a_client_that_left_gets_no_answer(failure: Exception) -> None:
    """Rule: the edge sends nothing on a connection that was lost or must be broken, and leaves it to the server."""
    with pytest.raises(type(failure)):
        await answered(FailingEdge(failure))


async def test_requests_beyond_the_limit_are_shed() -> None:
    """Rule: requests beyond the limit get SlowDown and a Retry-After, at every address."""
    start, body = await answered(FailingEdge(ApiError("NotFound"), limit=0))
    assert (start["status"], json.loads(body["body"])["code"]) == (503, "SlowDown")
    assert dict(start["headers"])[b"retry-after"] == b"1"


async def test_a_caller_beyond_its_share_is_shed_and_named() -> None:
    """Rule: a caller that has its share gets SlowDown while others are served; a full edge makes the worker unready."""
    edge = FailingEdge(ApiError("NotFound"), limit=8)
    for _ in range(6):
        edge.places.take("vision")
    scope: Scope = {}
    with pytest.raises(ApiError, match="SlowDown"):
        edge.admit(scope, "vision")
    edge.admit(scope, "speech")
    partly = overload_troubles([edge], edge.shed_at)
    edge.places.take("maps")
    whole = overload_troubles([edge], edge.shed_at)
    assert [(each.kind, each.unready) for each in partly + whole] == [("overload", False), ("overload-whole", True)]
    edge.places.give_back("maps")
    assert overload_troubles([edge], edge.shed_at + 61) == []
