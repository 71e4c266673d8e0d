"""Requests to a gateway's own addresses (``/-/``): patience where it helps, typed errors where it does not.

Errors of a gateway are problem documents (RFC 9457) with a ``code``. Anything else comes from something in between, or from
another server altogether.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.message import Message
from http.client import HTTPResponse
from typing import Any

from larder.connection import TRANSIENT, Body, Connection
from larder.credentials import Credentials, CredentialSource
from larder.errors import GatewayUnavailable, LarderError, RequestRefused, UnexpectedAnswer, UnknownDataset
from larder.retry import Patience, Retry

_LONGEST_RETRY_AFTER = 60.0
_BUSY_STATUS = frozenset({429, 500, 502, 503, 504})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidAccessKeyId"})
_ERROR_BODY = 1 << 16


class Busy(LarderError):
    """The gateway, or a proxy before it, cannot answer now. ``retry_after``: seconds that it asks to be left alone."""

    def __init__(self, detail: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(detail)


class Api:
    """One gateway. Safe to share between threads, to fork, to copy and to pickle.

    Args:
        endpoint: its address.
        credentials: to sign with.
        timeout: seconds that it may be silent before an attempt counts as failed.
        retry: how often a failed attempt is repeated.

    Raises:
        ValueError: the endpoint is not an http or https address.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None,
        timeout: float = 30.0,
        retry: Retry | None = None,
    ) -> None:
        self.connection = Connection(endpoint, credentials=credentials, timeout=timeout)
        self.retry = retry or Retry()

    @property
    def endpoint(self) -> str:
        """The gateway's address."""
        return self.connection.endpoint

    @contextmanager
    def exchange(
        self, method: str, path: str, *, expected: frozenset[int] = frozenset({200}), **request: Any
    ) -> Iterator[HTTPResponse]:
        """One attempt at one request; gives the answer when its status is ``expected``. See ``Connection.exchange``.

        Raises:
            Busy: asking again later may help.
            RequestRefused: the gateway said no.
            UnexpectedAnswer: what answered is no gateway.
            OSError: the connection failed, as does http.client.HTTPException.
        """
        with self.connection.exchange(method, path, **request) as response:
            if response.status not in expected:
                raise refusal(self.endpoint, response.status, response.headers, response.read(_ERROR_BODY))
            yield response

    def ask(self, method: str, path: str, **request: Any) -> tuple[int, bytes]:
        """Status and body of an expected answer, after as many attempts as it takes and ``retry`` allows.

        Raises:
            GatewayUnavailable: there was none.
            RequestRefused: the gateway said no.
            UnexpectedAnswer: what answered is no gateway.
            CredentialsMissing: there is no access key to sign with.
        """
        opened: Callable[[], Body] = request.pop("opened", lambda: request.get("body"))
        patience = Patience(self.retry)
        renewed = False
        while True:
            failure: Exception
            pause = 0.0
            try:
                with self.exchange(method, path, **{**request, "body": opened()}) as response:
                    return response.status, response.read()
            except RequestRefused as error:
                if renewed or not self.renewable(error):
                    raise
                renewed = True
                continue
            except Busy as error:
                failure, pause = error, error.retry_after
            except TRANSIENT as error:
                failure = error
            drawn = patience.pause("busy" if isinstance(failure, Busy) else "connection")
            if drawn is None:
                raise GatewayUnavailable(self.endpoint, patience.failures, failure) from failure
            time.sleep(max(drawn, pause))

    def json(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """The JSON object that is answered. Raises as ``ask`` does."""
        status, body = self.ask(method, path, **request)
        return self.parsed(status, body)

    def parsed(self, status: int, body: bytes) -> dict[str, Any]:
        """A body that must be a JSON object. Raises UnexpectedAnswer."""
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UnexpectedAnswer(self.endpoint, status, "the body is not a JSON object")
        return answer

    def renewable(self, error: RequestRefused) -> bool:
        """Whether the credentials were refused, and may be other ones when they are looked for again."""
        return error.code in _EXPIRED and self.connection.credentials.forget()


def refusal(endpoint: str, status: int, headers: Message, body: bytes) -> LarderError:
    """The typed error of an answer that was not hoped for."""
    problem = _problem(headers, body)
    if status in _BUSY_STATUS:
        what = f"{problem.get('code', '')} {problem.get('detail', '')}".strip() or "no explanation"
        return Busy(f"{status}: {what}", _retry_after(headers))
    if not problem:
        return UnexpectedAnswer(endpoint, status, body[:200].decode("utf-8", "replace"))
    code, detail = str(problem.get("code", "")), str(problem.get("detail") or problem.get("title") or "")
    if code == "RequestTimeTooSkewed":
        here = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        detail += (
            f" (this machine's clock says {here}, the gateway's {headers.get('Date', 'nothing')}; set the wrong one)"
        )
    return (UnknownDataset if code == "UnknownDataset" else RequestRefused)(status, code, detail)


def _problem(headers: Message, body: bytes) -> Mapping[str, Any]:
    if headers.get_content_type() != "application/problem+json":
        return {}
    try:
        problem = json.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) and "code" in problem else {}


def _retry_after(headers: Message) -> float:
    """Seconds; the form with a date (RFC 9110, 10.2.3) is no gateway's, and our own pauses do for it."""
    text = (headers.get("Retry-After") or "").strip()
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isdecimal() and len(text) < 10 else 0.0
