"""Requests to a gateway's own addresses (``/-/``), with retries and typed errors.

Errors of a gateway are problem documents (RFC 9457) with a ``code``. Any other error comes from a proxy or another server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from email.message import Message
from http.client import HTTPResponse
from typing import Any

from larder.base.errors import GatewayUnavailable, LarderError, RequestRefused, UnexpectedAnswer, UnknownDataset
from larder.base.retry import Patience, Retry
from larder.http.connection import TRANSIENT, Body, Connection
from larder.http.credentials import Credentials, CredentialSource

_MAX_RETRY_AFTER = 60.0
"""The most seconds of a ``Retry-After``; a longer one is cut to this."""
_BUSY_STATUS = frozenset({429, 500, 502, 503, 504})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidAccessKeyId"})
_ERROR_BODY = 1 << 16
"""The most bytes of an error's body that are read."""


class Busy(LarderError):
    """The gateway, or a proxy in front of it, is temporarily unavailable. ``retry_after``: seconds until the next attempt."""

    def __init__(self, detail: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(detail)


class Api:
    """One gateway. Safe to share between threads, to fork, to copy and to pickle.

    Args:
        endpoint: address of the gateway.
        credentials: access key to sign with.
        timeout: seconds of silence after which an attempt fails.
        retry: repetition of failed attempts.

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
        """Send a request once; yields the answer if its status is ``expected``. See ``Connection.exchange``.

        Raises:
            Busy: a temporary failure.
            RequestRefused: the gateway refused the request.
            UnexpectedAnswer: the endpoint is not a Larder gateway.
            OSError: the connection failed; or http.client.HTTPException.
        """
        with self.connection.exchange(method, path, **request) as response:
            if response.status not in expected:
                raise refusal(self.endpoint, response.status, response.headers, response.read(_ERROR_BODY))
            yield response

    def ask(self, method: str, path: str, **request: Any) -> tuple[int, bytes]:
        """Status and body of an expected answer, with the attempts that ``retry`` allows.

        Raises:
            GatewayUnavailable: all attempts failed.
            RequestRefused: the gateway refused the request.
            UnexpectedAnswer: the endpoint is not a Larder gateway.
            CredentialsMissing: no access key was found.
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
        """The JSON object of the answer. Raises what ``ask`` raises."""
        status, body = self.ask(method, path, **request)
        return self.parsed(status, body)

    def parsed(self, status: int, body: bytes) -> dict[str, Any]:
        """Parse a body as a JSON object. Raises UnexpectedAnswer."""
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UnexpectedAnswer(self.endpoint, status, "the body is not a JSON object")
        return answer

    def renewable(self, error: RequestRefused) -> bool:
        """Whether the error is about credentials that a new lookup may replace."""
        return error.code in _EXPIRED and self.connection.credentials.forget()


def refusal(endpoint: str, status: int, headers: Message, body: bytes) -> LarderError:
    """The typed error of an unexpected status."""
    problem = _problem(headers, body)
    if status in _BUSY_STATUS:
        what = f"{problem.get('code', '')} {problem.get('detail', '')}".strip() or "no explanation"
        return Busy(f"{status}: {what}", _retry_after(headers))
    if not problem:
        return UnexpectedAnswer(endpoint, status, body[:200].decode("utf-8", "replace"))
    code, detail = str(problem.get("code", "")), str(problem.get("detail") or problem.get("title") or "")
    if code == "RequestTimeTooSkewed":
        here = datetime.now(timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
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
    """The seconds of Retry-After. Gateways never send its form with a date (RFC 9110, 10.2.3), which counts as absent."""
    text = (headers.get("Retry-After") or "").strip()
    return min(float(text), _MAX_RETRY_AFTER) if text.isdecimal() and len(text) < 10 else 0.0
