"""Where a loader's items come from: a dataset at a gateway, named in one of the ways that people name datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from larder.batch import BatchReader
from larder.client import Client
from larder.credentials import Credentials, CredentialSource
from larder.dataset import DatasetInfo, ItemLocation
from larder.errors import UnknownDataset
from larder.merging import Fetched
from larder.retry import Retry
from larder.s3 import S3
from larder.stats import Stats

DatasetName = str | os.PathLike[str] | DatasetInfo
OUTAGE = 120.0
"""Seconds: how long a gateway may be away, as when it restarts, before a training job gives up."""


class Reader(Protocol):
    """Reads items; `larder.BatchReader` is the one that asks a gateway."""

    def fetch(
        self,
        indices: NDArray[np.uint32],
        *,
        mode: str = "exact",
        take: int | None = None,
        ordered: bool = False,
        epoch: int = 0,
        job: str = "",
    ) -> Fetched:
        """As `BatchReader.fetch`."""

    def prefetch(self, indices: NDArray[np.uint32]) -> dict[str, int]:
        """As `BatchReader.prefetch`."""


class Source(Protocol):
    """A dataset and how to read from it. Must survive fork, pickling and copying; makes no request before it is asked to."""

    def describe(self) -> DatasetInfo:
        """The dataset."""

    def reader(self, info: DatasetInfo, stats: Stats) -> Reader:
        """What reads its items."""

    def locations(self, info: DatasetInfo, start: int = 0, count: int | None = None) -> Iterable[ItemLocation]:
        """Where the items from ``start`` on lie."""


@dataclass(frozen=True)
class Access:
    """How a gateway is asked.

    Args:
        credentials: one of its access keys; ``None`` looks where AWS's tools look.
        timeout: seconds that it may be silent before an attempt counts as failed.
        retry: how often a request that brought nothing is repeated. If left out, and without ``fallback``, batches and the keys
            of items are asked for until nothing has come for two minutes, whatever fails; a gateway that was not there at the
            beginning fails at once.
        fallback: as for `BatchReader`: ``"origin"`` reads directly from S3 what a gateway that is gone does not deliver.
        digest_file: of the dataset, for ``fallback`` and to register it again; not needed if the dataset is named by it.
        caching: of a dataset that is registered by its digest file: ``auto``, ``full``, ``static``, ``chunked`` or ``none``.
        split: ask each node of a fleet for what it is home of, if there are several and all can be reached from here.
    """

    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None
    timeout: float = 30.0
    retry: Retry | None = None
    fallback: str | S3 | None = None
    digest_file: str | os.PathLike[str] | None = None
    caching: str = "auto"
    split: bool = True


class GatewaySource:
    """A dataset at a gateway.

    Args:
        endpoint: address of the gateway.
        dataset: the name of a dataset that the gateway knows, or what `Client.register` returned; or a digest file, which is
            registered under the stem of its name and the first digits of its id: a path (whatever contains a ``/`` or ends in
            ``.parquet`` or ``.digest`` is one) or its S3 address ``s3://bucket/key``, which the gateway reads itself.
        access: everything else.
    """

    def __init__(self, endpoint: str, dataset: DatasetName, access: Access | None = None) -> None:
        self._access = access or Access()
        self._dataset = dataset
        of = self._access
        # A gateway that is not there at the beginning fails at once; a training job that is under way waits for it.
        self._in_training = Retry(outage=OUTAGE) if of.retry is None and of.fallback is None else of.retry
        self._client = Client(endpoint, credentials=of.credentials, timeout=of.timeout, retry=of.retry)
        self._patient_client = Client(endpoint, credentials=of.credentials, timeout=of.timeout, retry=self._in_training)

    def describe(self) -> DatasetInfo:
        """The dataset, registered if it was named by its digest file. Raises as `Client.register` and `Client.dataset`."""
        dataset = self._dataset
        if isinstance(dataset, DatasetInfo):
            return dataset
        if not is_file(dataset):
            return self._known(os.fspath(dataset))
        text = os.fspath(dataset)
        return self._client.register(PurePosixPath(text).stem, text, caching=self._access.caching, by_content=True)

    def _known(self, name: str) -> DatasetInfo:
        try:
            return self._client.dataset(name)
        except UnknownDataset as error:
            if not os.path.isfile(name):
                raise
            hint = f"If its digest file is the file of this name, say './{name}': then it is registered by itself."
            raise UnknownDataset(error.status, error.code, f"{error.detail} {hint}") from None

    def reader(self, info: DatasetInfo, stats: Stats) -> BatchReader:
        """Asks the gateway for batches."""
        access = self._access
        return BatchReader(
            self._client.endpoint,
            info,
            credentials=access.credentials,
            timeout=access.timeout,
            retry=self._in_training,
            fallback=access.fallback,
            digest_file=self._digest_file(),
            split=access.split,
            stats=stats,
        )

    def locations(self, info: DatasetInfo, start: int = 0, count: int | None = None) -> Iterable[ItemLocation]:
        """Where the items lie, as the gateway says."""
        return self._patient_client.each_item(info.id, start, count)

    def _digest_file(self) -> str | os.PathLike[str] | None:
        dataset = self._dataset
        if self._access.digest_file is not None or isinstance(dataset, DatasetInfo) or not is_file(dataset):
            return self._access.digest_file
        return dataset


def is_file(dataset: str | os.PathLike[str]) -> bool:
    """Whether a dataset is named by its digest file."""
    return not isinstance(dataset, str) or "/" in dataset or dataset.endswith((".parquet", ".digest"))
