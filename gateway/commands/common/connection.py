"""The client of a gateway's ``/-/admin``: address, token, and error messages.

Errors that the user can fix locally, such as a missing address or a wrong token, are configuration errors; errors of the gateway
are problems. Redirects are not followed: they would disclose the token to another host.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

import httpx

from gateway import __version__
from gateway.commands.common.output import hint, note, printable
from gateway.commands.common.secret_file import secret_of
from gateway.model.errors import ConfigError, LarderError

PATIENCE = 60.0
"""Seconds to wait for an answer; a purge asks every node before it answers."""
_PAGE = 1000
"""The most items on a page."""
_ONCE = re.compile(r"(tenants|credentials|origins|tokens|warmups|verifications|credentials/[^/]+/rotate)")
"""Addresses whose POST may be repeated, protected by its Idempotency-Key."""
_ENDPOINT = re.compile(r"https?://[^\s/?#@]+/?")
_TOKEN = re.compile(r"[!-~]+")
_LOST = {"catalog": "its catalog", "redis": "Redis"}
"""The unreachable service when an answer is stale, by the header x-larder-stale."""
_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_UNAUTHORIZED = (
    "the gateway requires its admin token: name a file with it by --token-file, or set LARDER_ADMIN_TOKEN "
    "(admin.token of its configuration, or a named token; admin.read_token is enough for reading)"
)


class Unreachable(LarderError):
    """The gateway did not answer."""


class Refused(LarderError):
    """The gateway refused.

    Args:
        status: of HTTP.
        code: of the problem document.
        detail: of the problem document.
    """

    def __init__(self, status: int, code: str, detail: str) -> None:
        self.status = status
        self.code = code
        super().__init__(f"{printable(detail)} ({printable(code)})")


class Admin:
    """The admin endpoints of one gateway.

    Args:
        endpoint: its address.
        token: its admin token; empty for none.
        timeout: seconds to wait for an answer.

    Raises:
        ConfigError: the address is invalid.
    """

    def __init__(self, endpoint: str, token: str = "", timeout: float = PATIENCE) -> None:
        if not _ENDPOINT.fullmatch(endpoint) or not _has_a_port(endpoint):
            raise ConfigError(f"--endpoint: {endpoint!r} must look like http://10.0.0.11:9000, without a path")
        self.endpoint = endpoint.rstrip("/")
        self._token = token
        self._warned: set[str] = set()
        headers = {"User-Agent": f"larder-gateway/{__version__}", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._client = httpx.Client(base_url=f"{self.endpoint}/-/admin/", headers=headers, timeout=timeout)
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"--endpoint: {endpoint!r} is not a valid address: {error}") from None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def get(self, path: str, **parameters: object) -> Any:
        """The document at an address below ``/-/admin/``; ``None`` parameters are left out. Raises what ``ask`` raises."""
        return self.ask("GET", path, parameters=parameters)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        parameters: Mapping[str, object] | None = None,
        etag: str | None = None,
    ) -> Any:
        """Send one request; returns the JSON object of the answer, ``None`` for an empty one.

        Args:
            method: of HTTP.
            path: below ``/-/admin/``, made by ``path`` where it has names in it.
            body: sent as JSON.
            parameters: of the query; those that are ``None`` are left out.
            etag: change the record only if it has this version.

        Raises:
            Unreachable: there was no answer.
            Refused: the gateway refused.
            ConfigError: the token is missing or wrong, or the address is not a Larder gateway's.
        """
        given = {name: str(value) for name, value in (parameters or {}).items() if value is not None}
        headers = {"If-Match": etag} if etag else {}
        if method == "POST":
            headers["Idempotency-Key"] = str(uuid4())
        if body is not None:
            headers["Content-Type"] = "application/json"
        # Arguments that are not UTF-8 are sent escaped: the gateway refuses the field, or finds nothing.
        asked = f"{path}?{urlencode(given, errors='surrogateescape', quote_via=quote)}" if given else path
        content = None if body is None else json.dumps(body)
        request = self._client.build_request(method, asked, content=content, headers=headers)
        try:
            return self._read(self._send(request, again=method == "GET" or _ONCE.fullmatch(path) is not None))
        except httpx.TransportError as error:
            sent = method != "GET" and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            unsure = f"; {hint('audit')} shows whether the change was made" if sent else ""
            raise Unreachable(f"{self._no_answer(error)}{unsure}") from None

    def metrics(self) -> bytes:
        """The gateway's metrics, in Prometheus' text format.

        Raises:
            Unreachable: there was no answer.
            Refused: the gateway does not show them.
        """
        try:
            answer = self._send(self._client.build_request("GET", f"{self.endpoint}/-/metrics"), again=True)
        except httpx.TransportError as error:
            raise Unreachable(self._no_answer(error)) from None
        if answer.status_code != 200:
            raise Refused(answer.status_code, "NoMetrics", f"the gateway answers {answer.status_code} to /-/metrics")
        return answer.content

    def _send(self, request: httpx.Request, *, again: bool) -> httpx.Response:
        """Send a request, and once more if that is safe and the answer was lost."""
        try:
            return self._client.send(request)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            if not again:
                raise
            return self._client.send(request)

    def listed(self, path: str, limit: int = 0, **parameters: object) -> Iterator[dict[str, Any]]:
        """The items of a list, page by page; at most ``limit`` of them, 0 for all. Raises what ``ask`` raises."""
        items = self._each(path, min(limit, _PAGE) if limit else _PAGE, parameters)
        return islice(items, limit) if limit else items

    def _each(self, path: str, page: int, parameters: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            answer = self.get(path, **{**parameters, "limit": page, "cursor": cursor})
            items = answer.get("items")
            if not isinstance(items, list):
                raise self._no_larder("its list has no items")
            yield from items
            cursor = answer.get("next")
            if cursor is None:
                return

    def _read(self, answer: httpx.Response) -> Any:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status_code >= 300:
            problem = _object(answer) if kind == "application/problem+json" else {}
            if "code" not in problem:
                raise self._no_larder(f"it answers {answer.status_code} to {answer.request.url.path}")
            raise self._refusal(answer.status_code, str(problem["code"]), str(problem.get("detail", "")))
        if answer.status_code == 204:
            return None
        self._warn(answer.headers.get("x-larder-stale", ""))
        document = _object(answer) if kind == "application/json" else {}
        if not document:
            raise self._no_larder(f"its answer to {answer.request.url.path} is not a JSON object")
        return document

    def _warn(self, stale: str) -> None:
        """Warn once that answers are stale."""
        if (lost := _LOST.get(stale)) and stale not in self._warned:
            self._warned.add(stale)
            note(f"{self.endpoint} cannot reach {lost}: this is its last known state")

    def _refusal(self, status: int, code: str, detail: str) -> LarderError:
        if status == 401 and not self._token:
            return ConfigError(_UNAUTHORIZED)
        if status == 401:
            return ConfigError(f"{self.endpoint} does not accept the token: {printable(detail)}")
        if code == "AdminDisabled":
            return ConfigError(f"{self.endpoint} has its admin API disabled: {printable(detail)}")
        return Refused(status, code, detail or f"the gateway answers {status}")

    def _no_larder(self, what: str) -> ConfigError:
        return ConfigError(f"{self.endpoint} is not a Larder gateway: {what}; set --endpoint or LARDER_ENDPOINT")

    def _no_answer(self, error: Exception) -> str:
        if isinstance(error, httpx.TimeoutException):
            return f"{self.endpoint} does not answer; check the address"
        for cause in (error, *_causes(error)):
            if isinstance(cause, ssl.SSLCertVerificationError):
                return f"{self.endpoint}: its certificate is not trusted here: {_mistrust(cause)}"
            if isinstance(cause, ConnectionRefusedError):
                return f"{self.endpoint} refuses the connection; is the gateway running?"
        return f"{self.endpoint} cannot be reached: {str(error) or type(error).__name__}"


def path(*parts: str) -> str:
    """An address below ``/-/admin/``; its parts may contain any bytes of the command line."""
    return "/".join(quote(part, safe="", errors="surrogateescape") for part in parts)


@contextmanager
def connected(options: Namespace, *, timeout: float = PATIENCE) -> Iterator[Admin]:
    """The gateway named by the options or the environment.

    Args:
        options: of the command line.
        timeout: seconds to wait for an answer.

    Raises:
        ConfigError: none is named, or the token is malformed.
    """
    endpoint = options.endpoint or os.environ.get("LARDER_ENDPOINT", "")
    if not endpoint:
        raise ConfigError("which gateway? Give --endpoint http://HOST:PORT, or set LARDER_ENDPOINT")
    admin = Admin(endpoint, token_of(options), timeout)
    try:
        yield admin
    finally:
        admin.close()


def token_of(options: Namespace) -> str:
    """The token from file, option or environment, in this order; empty for none."""
    if options.token_file is not None:
        where, token = "--token-file", secret_of("--token-file", options.token_file) or ""
    elif options.token is not None:
        where, token = "--token", options.token
    else:
        where, token = "LARDER_ADMIN_TOKEN", os.environ.get("LARDER_ADMIN_TOKEN", "").strip()
    if token and not _TOKEN.fullmatch(token):
        raise ConfigError(f"{where}: a token consists of printable ASCII characters without spaces")
    return str(token)


def _has_a_port(endpoint: str) -> bool:
    """Whether the port, if any, is valid."""
    try:
        return urlsplit(endpoint).port != 0
    except ValueError:
        return False


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _mistrust(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _OTHER_NAME:
        return "it is for another name; use that name in --endpoint"
    return f"{error.verify_message}; set SSL_CERT_FILE to trust another authority"


def _causes(error: BaseException) -> Iterator[BaseException]:
    following = error.__cause__ or error.__context__
    if following is not None:
        yield following
        yield from _causes(following)
