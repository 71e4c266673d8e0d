"""Asking one gateway about itself.

Each request has its own connection. These are rare, small requests, and a client without an open socket needs no care
when it is shared between threads, forked or pickled, which is what data loaders do to everything they are given.
"""

import json
import random
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from larder.errors import GatewayUnavailable, UnexpectedAnswer
from larder.retry import Retry


class Client:
    """Asks a gateway about itself. Safe to share between threads, to fork and to pickle.

    Args:
        endpoint: address of the gateway, such as ``http://127.0.0.1:9000``.
        timeout: seconds that the gateway may be silent before an attempt counts as failed.
        retry: how often a failed attempt is repeated.

    Raises:
        ValueError: the endpoint is not an http or https address.
    """

    def __init__(self, endpoint: str, *, timeout: float = 10.0, retry: Retry | None = None) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f'endpoint must look like "http://127.0.0.1:9000", not {endpoint!r}')
        self.endpoint = endpoint.rstrip("/")
        self.timeout = timeout
        self.retry = retry or Retry()

    def ping(self) -> dict[str, object]:
        """Whether the gateway is ready: ``{"ready": bool, ...}`` with what else ``/-/readyz`` says of its parts.

        A gateway that says "not ready" has answered: that is returned, not raised.

        Raises:
            GatewayUnavailable: there was no answer.
            UnexpectedAnswer: what answered is not a Larder gateway.
        """
        status, answer = self._ask("/-/readyz", {200, 503})
        return {**answer, "ready": status == 200}

    def server_info(self) -> dict[str, object]:
        """What the gateway's process says of itself in ``/-/healthz``.

        Raises:
            GatewayUnavailable: there was no answer.
            UnexpectedAnswer: what answered is not a Larder gateway.
        """
        return self._ask("/-/healthz", {200})[1]

    def _ask(self, path: str, expected: set[int]) -> tuple[int, dict[str, object]]:
        status, body = self._get(path)
        if status not in expected:
            raise UnexpectedAnswer(self.endpoint, status, body[:200].decode("utf-8", "replace"))
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UnexpectedAnswer(self.endpoint, status, "the body is not a JSON object")
        return status, answer

    def _get(self, path: str) -> tuple[int, bytes]:
        pauses = self.retry.pauses(random.SystemRandom())
        while True:
            try:
                return self._attempt(path)
            except (OSError, HTTPException) as error:
                pause = next(pauses, None)
                if pause is None:
                    raise GatewayUnavailable(self.endpoint, self.retry.attempts, error) from error
                time.sleep(pause)

    def _attempt(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(self.endpoint)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout)
        try:
            connection.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
