"""Reading items from their origin while the gateway is unavailable."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from larder.base.dataset import DatasetInfo
from larder.base.errors import DigestFileError, LarderError, LarderWarning, ObjectChanged, ObjectMissing, S3Error
from larder.base.retry import Retry
from larder.http.credentials import CredentialSource
from larder.http.s3 import S3
from larder.reading.frames import CHANGED, MISSING, ORIGIN_ERROR, REFUSED, ItemFailure, Received

if TYPE_CHECKING:
    from larder.digest.file import DigestFile

_THREADS = 16
"""The most items that one read fetches concurrently."""
_FIRST_PAUSE = 1.0
_MAX_PAUSE = 60.0
"""Seconds between attempts to reach the gateway: the first pause, and the longest."""
_log = logging.getLogger("larder")
_warned_in = 0
"""Id of the process that has issued the warning."""


class Probation:
    """When to try an unavailable gateway again: after a second, then twice as long each time, up to a minute.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = 0.0
        self._until = 0.0

    @property
    def active(self) -> bool:
        """Whether the gateway counts as unavailable."""
        return self._pause > 0

    @property
    def waiting(self) -> bool:
        """Whether it is too early to try the gateway again."""
        return self.active and self._clock() < self._until

    def failed(self) -> None:
        """Record that the gateway was unavailable."""
        self._pause = min(_MAX_PAUSE, 2 * self._pause or _FIRST_PAUSE)
        self._until = self._clock() + self._pause

    def answered(self) -> None:
        """Record that the gateway answered."""
        self._pause = 0.0

    def __reduce__(self) -> tuple[type[Probation], tuple[()]]:
        return Probation, ()  # clocks of different machines are not comparable


class Origin:
    """The store of a dataset's items, with the digest file that locates them. Safe for threads, to fork and to pickle.

    Args:
        store: an S3 reader; or an endpoint; or ``origin``: that of ``LARDER_ORIGIN_ENDPOINT``, else AWS.
        digest_file: of the dataset.
        dataset: dataset that the digest file must describe.
        timeout: seconds of silence after which a read fails.
        retry: repetition of each read.

    Raises:
        ValueError: no digest file was given.
        LarderError: pyarrow is not installed.
    """

    def __init__(
        self,
        store: S3 | str,
        digest_file: str | os.PathLike[str] | None,
        dataset: DatasetInfo,
        *,
        timeout: float,
        retry: Retry,
    ) -> None:
        if digest_file is None:
            raise ValueError("a fallback to the origin needs digest_file, which has the items' locations and digests")
        if importlib.util.find_spec("pyarrow") is None:
            raise LarderError(
                'a fallback to the origin reads a digest file, which needs pyarrow: pip install "larder[digest]"'
            )
        self._store = store if isinstance(store, S3) else _store(store, timeout, retry, dataset.request_payer)
        self._path = os.fspath(digest_file)
        self._dataset = dataset
        self._file: DigestFile | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_file": None}

    def read(self, indices: NDArray[np.uint32]) -> Received:
        """Read items concurrently and verify their digests. Positions refer to ``indices``.

        Raises:
            DigestFileError: the file cannot be read, or is of another dataset.
        """
        file = self._digest_file()
        received = Received()
        with ThreadPoolExecutor(min(_THREADS, max(1, len(indices))), "larder-origin") as pool:
            for position, got in enumerate(pool.map(partial(self._item, file), indices.tolist())):
                if isinstance(got, ItemFailure):
                    received.failures[position] = got
                else:
                    received.positions.append(position)
                    received.data.append(memoryview(got))
                    received.flags.append(0)
        return received

    def _item(self, file: DigestFile, index: int) -> bytes | ItemFailure:
        bucket, key, offset, length = file.location(index)
        try:
            # Without an offset, the item is the whole object, whatever its recorded length.
            data = self._store.get(bucket, key, offset=offset, length=None if offset is None else length)
        except S3Error as error:
            return ItemFailure(index, _status(error), bucket, key, f"{error.code} ({error.status}): {error.detail}")
        if hashlib.sha256(data).digest() != file.digest(index):
            return ItemFailure(index, CHANGED, bucket, key, f"{len(data)} bytes whose SHA-256 is not the digest file's")
        return data

    def _digest_file(self) -> DigestFile:
        if self._file is None:
            try:
                from larder.digest.file import read
            except ImportError as error:
                raise LarderError(f"reading {self._path} needs the extra larder[digest]: {error}") from error
            file = read(self._path)
            if file.id != self._dataset.id:
                raise DigestFileError(
                    f"{self._path} is of dataset {file.id}, not of {self._dataset.id} ({self._dataset.name})"
                )
            self._file = file
        return self._file


def warn_once(endpoint: str, cause: Exception) -> None:
    """Warn that items come from the origin; once per process."""
    global _warned_in
    if _warned_in == os.getpid():
        return
    _warned_in = os.getpid()
    message = f"{cause}; items are read from their origin until the gateway at {endpoint} answers again"
    _log.warning("%s", message)
    warnings.warn(message, LarderWarning, stacklevel=4)  # past `BatchReader.fetch`


def _store(endpoint: str, timeout: float, retry: Retry, request_payer: bool) -> S3:
    if endpoint == "origin":
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = os.environ.get("LARDER_ORIGIN_ENDPOINT") or f"https://s3.{region}.amazonaws.com"
    return S3(endpoint, credentials=CredentialSource(), timeout=timeout, retry=retry, request_payer=request_payer)


def _status(error: S3Error) -> int:
    if isinstance(error, ObjectMissing):
        return MISSING
    if isinstance(error, ObjectChanged):
        return CHANGED
    return REFUSED if error.status in (401, 403) else ORIGIN_ERROR
