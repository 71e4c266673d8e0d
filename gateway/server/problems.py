"""Problem documents (RFC 9457) as they are counted, logged and sent, whichever application found the problem."""

from __future__ import annotations

from logging import Logger

from gateway import metrics
from gateway.model.problems import MEDIA_TYPE, Problem
from gateway.server.refusals import Send


def counted(problem: Problem, error: Exception, log: Logger) -> Problem:
    """The problem itself; to be called once for each refusal that is sent. ``error`` is why, for the log."""
    if problem.status in (401, 403):
        metrics.AUTH_FAILURES.labels(problem.code).inc()
    if problem.status == 503:
        log.warning("%s", error)
    return problem


async def send_document(send: Send, problem: Problem) -> None:
    """Answer with it, over plain ASGI."""
    body = problem.body
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    headers += [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
