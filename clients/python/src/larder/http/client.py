"""One gateway: its readiness, and its datasets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from larder.base.dataset import DatasetInfo, ItemLocation, check_name
from larder.base.errors import DigestFileError, UnexpectedAnswer
from larder.base.retry import Retry
from larder.http.api import Api
from larder.http.credentials import Credentials, CredentialSource
from larder.http.s3 import PAYS
from larder.http.signing import encode_query, payload_hash_of

_REGISTER_TIMEOUT = 900.0
"""Seconds: a gateway checks a whole digest file before it answers, minutes for ten million items."""
_DIGEST = 32
_MOST_DIGESTS = 16_384
_PAGE = 10_000
"""Item locations per request."""
_CREATED = frozenset({200, 201})


class Client:
    """Queries a gateway, and registers datasets. Safe to share between threads, to fork, to copy and to pickle.

    Args:
        endpoint: address of the gateway, such as ``http://127.0.0.1:9000``.
        credentials: an access key of the gateway; if left out, the usual places of AWS's tools are searched at the first request
            that needs one.
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
        timeout: float = 10.0,
        retry: Retry | None = None,
    ) -> None:
        self._api = Api(endpoint, credentials=credentials, timeout=timeout, retry=retry)

    def __repr__(self) -> str:
        return f"Client({self.endpoint!r})"

    @property
    def endpoint(self) -> str:
        """Address of the gateway."""
        return self._api.endpoint

    @property
    def timeout(self) -> float:
        """Seconds of silence after which an attempt fails."""
        return self._api.connection.timeout

    @property
    def retry(self) -> Retry:
        """Repetition of failed attempts."""
        return self._api.retry

    def close(self) -> None:
        """Close idle connections; the client stays usable."""
        self._api.connection.close()

    def ping(self) -> dict[str, object]:
        """Whether the gateway is ready: ``{"ready": bool, ...}``, with all that ``/-/readyz`` says about its parts.

        "Not ready" is an answer too: it is returned, not raised.

        Raises:
            GatewayUnavailable: there was no answer.
            UnexpectedAnswer: what answered is not a Larder gateway.
        """
        status, body = self._api.ask("GET", "/-/readyz", expected=frozenset({200, 503}), signed=False)
        return {**self._api.parsed(status, body), "ready": status == 200}

    def server_info(self) -> dict[str, object]:
        """The gateway's facts about itself, from ``/-/healthz``.

        Raises:
            GatewayUnavailable: there was no answer.
            UnexpectedAnswer: what answered is not a Larder gateway.
        """
        return self._api.json("GET", "/-/healthz", signed=False)

    def register(
        self,
        name: str,
        source: str | os.PathLike[str],
        *,
        caching: str = "auto",
        by_content: bool = False,
        request_payer: bool = False,
        listing: str = "forward",
    ) -> DatasetInfo:
        """Register a dataset at the gateway. Repeating that is harmless; different content replaces the dataset that had the
        name.

        Args:
            name: 1 to 128 of ``A-Z a-z 0-9 . _ -``.
            source: a digest file, or the address of one that the gateway can read, ``s3://bucket/key``.
            caching: ``auto``, ``full``, ``part`` or ``none``.
            by_content: register it under ``name`` with the first digits of its id, which no other dataset can displace.
                It expires after some days without use.
            request_payer: accept the charges of requester-pays buckets, for the digest file and for all reads of the items.
            listing: ``immutable`` has listings of the items' folder in each bucket answered from a recorded one, until a write
                through the gateways or another registration; ``forward`` from the store.

        Raises:
            DigestFileError: there is no such file.
            RequestRefused: the file is not a digest file (InvalidDigestFile), is too large (TooLarge), or may not be read.
            GatewayUnavailable: the gateway did not answer, or cannot store it now.
            UnexpectedAnswer: what answered is not a Larder gateway.
            CredentialsMissing: there is no access key to sign with.
        """
        path = f"/-/v1/datasets/{check_name(name)}"
        options = {"by_content": "true"} if by_content else {}
        if listing != "forward":  # earlier gateways do not know it
            options["listing"] = listing
        query = encode_query([("caching", caching), *options.items()])
        patient = self._patient_api()
        payer = PAYS if request_payer else {}
        if isinstance(source, str) and source.startswith("s3://"):
            body = json.dumps({"source": source}).encode()
            headers = {"Content-Type": "application/json"} | payer
            document = patient.json("PUT", path, query=query, headers=headers, body=body, expected=_CREATED)
            return self._info(document)
        with ExitStack() as stack:
            size, sha256, opened = _upload(Path(source), stack)
            headers = {"Content-Type": "application/vnd.apache.parquet", "Content-Length": str(size)} | payer
            document = patient.json(
                "PUT", path, query=query, headers=headers, payload_hash=sha256, opened=opened, expected=_CREATED
            )
        return self._info(document)

    def dataset(self, name_or_id: str) -> DatasetInfo:
        """A registered dataset.

        Raises:
            UnknownDataset: no dataset has this name or id; register it.
            GatewayUnavailable: and others, as ``register`` does.
        """
        return self._info(self._api.json("GET", f"/-/v1/datasets/{check_name(name_or_id, id_too=True)}"))

    def datasets(self) -> list[DatasetInfo]:
        """All datasets of the caller's tenant. Raises what ``register`` raises."""
        listed = self._api.json("GET", "/-/v1/datasets").get("datasets")
        if not isinstance(listed, list):
            raise UnexpectedAnswer(self.endpoint, 200, '"datasets" is missing')
        return [self._info(document) for document in listed]

    def resident(self, digests: Sequence[bytes]) -> list[bool]:
        """Whether the fleet has the bytes of each SHA-256 digest in its cache, registered or not.

        Args:
            digests: 32 bytes each, sent in requests of 16,384.

        Raises:
            ValueError: a digest has another length.
            GatewayUnavailable: and others, as ``register`` does.
        """
        if any(len(digest) != _DIGEST for digest in digests):
            raise ValueError(f"digests must have {_DIGEST} bytes each: those of hashlib.sha256(...).digest()")
        there: list[bool] = []
        for start in range(0, len(digests), _MOST_DIGESTS):
            part = digests[start : start + _MOST_DIGESTS]
            headers = {"Content-Type": "application/octet-stream"}
            status, bits = self._api.ask("POST", "/-/v1/blobs/lookup", headers=headers, body=b"".join(part))
            if len(bits) != (len(part) + 7) // 8:
                raise UnexpectedAnswer(self.endpoint, status, f"{len(bits)} bytes of bitmap for {len(part)} digests")
            there += [bool(bits[place // 8] >> place % 8 & 1) for place in range(len(part))]
        return there

    def remove(self, name: str) -> None:
        """Remove a dataset's registration. Cached bytes stay until they are evicted.

        Raises:
            UnknownDataset: no dataset has this name.
            GatewayUnavailable: and others, as ``register`` does.
        """
        self._api.ask("DELETE", f"/-/v1/datasets/{check_name(name)}", expected=frozenset({204}))

    def items(self, name_or_id: str, start: int = 0, count: int | None = None) -> list[ItemLocation]:
        """Locations of the items from ``start`` on, at most ``count`` of them (by default all).

        Raises:
            UnknownDataset: the gateway does not know the dataset.
            GatewayUnavailable: and others, as ``register`` does.
        """
        return list(self.each_item(name_or_id, start, count))

    def each_item(self, name_or_id: str, start: int = 0, count: int | None = None) -> Iterator[ItemLocation]:
        """``items`` as an iterator that requests pages of ten thousand, for datasets too large for memory."""
        given = 0
        while count is None or given < count:
            size = _PAGE if count is None else min(_PAGE, count - given)
            page = self._page(name_or_id, start + given, size)
            yield from page
            given += len(page)
            if len(page) < size:
                return

    def _page(self, name_or_id: str, start: int, count: int) -> list[ItemLocation]:
        path = f"/-/v1/datasets/{check_name(name_or_id, id_too=True)}/items"
        query = encode_query([("start", str(start)), ("count", str(count))])
        rows = self._api.json("GET", path, query=query).get("items")
        fields = ("index", "bucket", "key", "offset", "length")
        try:
            return [ItemLocation(**{field: row[field] for field in fields}, size=row.get("size")) for row in rows or ()]
        except (TypeError, KeyError) as error:
            raise UnexpectedAnswer(self.endpoint, 200, f"an item has no {error}") from error

    def _info(self, document: Any) -> DatasetInfo:
        try:
            return DatasetInfo.from_json(document)
        except (ValueError, AttributeError) as error:
            raise UnexpectedAnswer(self.endpoint, 200, f"the dataset's {error}") from error

    def _patient_api(self) -> Api:
        connection = self._api.connection
        return Api(
            self.endpoint,
            credentials=connection.credentials,
            timeout=max(self.timeout, _REGISTER_TIMEOUT),
            retry=self.retry,
        )


def _upload(path: Path, stack: ExitStack) -> tuple[int, str, Callable[[], BinaryIO]]:
    """Size and SHA-256 of a file to send, and a function that rewinds and returns it for each attempt."""
    try:
        file = stack.enter_context(path.open("rb"))
    except OSError as error:
        raise DigestFileError(f"{path} cannot be read: {error.strerror}") from error
    sha256 = payload_hash_of(file)
    size = file.tell()

    def opened() -> BinaryIO:
        file.seek(0)
        return file

    return size, sha256, opened
