"""The source of a loader's items: a dataset at a gateway, given by name, id or digest file."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from larder.base.dataset import DatasetInfo, ItemLocation, MixtureInfo
from larder.base.errors import GatewayUnavailable, LarderError, UnknownDataset
from larder.base.retry import Patience, Retry
from larder.base.stats import Stats
from larder.base.tar import TarError, sample_members, split_name
from larder.http.client import Client
from larder.http.credentials import Credentials, CredentialSource, endpoint_of, source_of
from larder.http.s3 import S3
from larder.reading.batch import BatchReader
from larder.reading.merging import Fetched
from larder.reading.results import GatewayResults, ResultNames, ResultStore
from larder.reading.samples import SampleReader

DatasetName = str | os.PathLike[str] | DatasetInfo
OUTAGE = 120.0
"""Seconds that a training job waits for an unreachable gateway, such as during a restart."""
_ASIDE = 5.0
"""Seconds of silence after which an optional request fails."""
_WHOLE = -1
"""Offset of an item that is a whole object."""


class ItemReader(Protocol):
    """Reads items; `larder.BatchReader` reads them from a gateway."""

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

    def prefetch(self, indices: NDArray[np.uint32], *, epoch: int | None = None) -> dict[str, int]:
        """As `BatchReader.prefetch`."""


@runtime_checkable
class SharingReader(ItemReader, Protocol):
    """Reads items from a gateway that offers items which other jobs load, and knows orders by name."""

    def fetch(
        self,
        indices: NDArray[np.uint32],
        *,
        mode: str = "exact",
        take: int | None = None,
        ordered: bool = False,
        epoch: int = 0,
        job: str = "",
        order: str = "",
    ) -> Fetched:
        """As `BatchReader.fetch`."""

    def fetch_shared(self, indices: NDArray[np.uint32], *, take: int, offers: int, epoch: int, job: str) -> Fetched:
        """As `BatchReader.fetch_shared`."""

    def offers(self, most: int, *, epoch: int, job: str) -> NDArray[np.uint32]:
        """As `BatchReader.offers`."""


class Source(Protocol):
    """A dataset and its reader. Must survive fork, pickling and copying; sends no request before a method is called."""

    def describe(self) -> DatasetInfo:
        """The dataset."""

    def reader(self, info: DatasetInfo, stats: Stats) -> ItemReader:
        """A reader of its items."""

    def locations(self, info: DatasetInfo, start: int = 0, count: int | None = None) -> Iterable[ItemLocation]:
        """Locations of the items from ``start`` on."""


@runtime_checkable
class IdentifiedSource(Protocol):
    """A source that knows in whose name it reads."""

    def identity(self) -> bytes:
        """A digest of its credentials. Processes that read with equal ones may read the same.

        Raises:
            CredentialsMissing: no access key was found.
        """


@runtime_checkable
class ResidentSource(Protocol):
    """A source that knows how much of its dataset is cached."""

    def resident(self, info: DatasetInfo) -> Mapping[str, float]:
        """The share of items cached now, from 0 to 1: under the empty name, or for each dataset of a mixture under its name.
        Unknown shares are left out."""


@runtime_checkable
class KnowingSource(Protocol):
    """A source that knows which items of its dataset are cached."""

    def cached_items(self, info: DatasetInfo) -> NDArray[np.bool_] | None:
        """By item, whether it is cached now; ``None`` if that is not known."""


def least_reads(source: object, info: DatasetInfo) -> dict[str, float | None]:
    """The share of an epoch's items that must be read from the origin if it begins now, see `Stats.begin_epoch`."""
    cached = source.resident(info) if isinstance(source, ResidentSource) else {}
    if not isinstance(info, MixtureInfo):
        return {"": 1 - cached[""] if "" in cached else None}
    parts = {name: 1 - cached[name] if name in cached else None for name in info.names}
    known = [least * count for least, count in zip(parts.values(), info.counts, strict=True) if least is not None]
    return {"": sum(known) / info.items if info.items and len(known) == len(parts) else None, **parts}


@runtime_checkable
class SizedSource(Protocol):
    """A source that knows the lengths of its items."""

    def lengths(self, info: DatasetInfo) -> NDArray[np.int64]:
        """The length of each item, or sample, in bytes; -1 if unknown."""


def lengths_of(source: object, info: DatasetInfo) -> NDArray[np.int64]:
    """The length of each item in bytes.

    Raises:
        ValueError: one is not known.
    """
    lengths = source.lengths(info) if isinstance(source, SizedSource) else np.full(1, _WHOLE)
    if len(lengths) and int(lengths.min()) < 0:
        raise ValueError(
            f"the length of item {int(np.argmin(lengths))} is not known: build the digest file again, or give lengths= a number "
            "for each item"
        )
    return lengths


@runtime_checkable
class ResultSource(Protocol):
    """A source whose datasets have results of pipelines."""

    def results(self, info: DatasetInfo, name: str, owner: str, versions: int = 1) -> ResultStore:
        """The results of one mark, by number: the index of the item, plus ``info.items`` times the version.

        Args:
            info: the dataset.
            name: of the results, 64 hexadecimal digits.
            owner: of claims on them.
            versions: results of an item.
        """


@dataclass(frozen=True)
class Access:
    """Access of a loader to the gateway.

    Args:
        credentials: an access key of the gateway; ``None`` searches the usual places of AWS's tools.
        timeout: seconds of silence after which an attempt fails.
        retry: repetition of requests without progress. If left out, and without ``fallback``, requests for batches and item
            keys are repeated until two minutes pass without progress; a gateway that is unreachable at the start fails at once.
        fallback: as for `BatchReader`: ``"origin"`` reads directly from S3 while the gateway is unavailable.
        digest_file: of the dataset, for ``fallback`` and for registering it again; not needed if the dataset is given by its
            digest file.
        caching: mode for registering a digest file: ``auto``, ``full``, ``part`` or ``none``.
        split: request items directly from their home nodes, if the fleet has several and all are reachable.
        request_payer: register a digest file as one whose reads accept the charges of requester-pays buckets.
    """

    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None
    timeout: float = 30.0
    retry: Retry | None = None
    fallback: str | S3 | None = None
    digest_file: str | os.PathLike[str] | None = None
    caching: str = "auto"
    split: bool = True
    request_payer: bool = False


def access_of(
    access: Access | None,
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None,
    retry: Retry | None = None,
) -> Access:
    """The access that the options of a loader or a job give, whole or in its parts.

    Raises:
        ValueError: they give it twice.
    """
    parts = {"credentials": credentials, "retry": retry}
    twice = [name for name, part in parts.items() if part is not None]
    if access is not None and twice:
        raise ValueError(f"give {' and '.join(twice)} in access, or without it")
    return access or Access(credentials=credentials, retry=retry)


class GatewaySource:
    """A dataset at a gateway.

    Args:
        endpoint: address of the gateway; ``None``: ``LARDER_ENDPOINT``, or that of AWS's tools.
        dataset: the name of a registered dataset, or the result of `Client.register`; or a digest file, which is registered
            under its stem and the first digits of its id: a path (a string with a ``/``, or ending in ``.parquet`` or
            ``.digest``) or an S3 address ``s3://bucket/key``, which the gateway reads itself.
        access: credentials, timeouts and fallback.
    """

    def __init__(self, endpoint: str | None, dataset: DatasetName, access: Access | None = None) -> None:
        self._access = access or Access()
        self._dataset = dataset
        settings = self._access
        # An unreachable gateway is an error at once at the start; a job that has begun waits for it.
        self._in_training = (
            Retry(outage=OUTAGE) if settings.retry is None and settings.fallback is None else settings.retry
        )
        address = endpoint_of(endpoint)
        self._client = Client(address, credentials=settings.credentials, timeout=settings.timeout, retry=settings.retry)
        self._patient_client = Client(
            address, credentials=settings.credentials, timeout=settings.timeout, retry=self._in_training
        )
        brief = min(settings.timeout, _ASIDE)
        self._brief_client = Client(address, credentials=settings.credentials, timeout=brief, retry=Retry(attempts=1))

    def identity(self) -> bytes:
        """See `IdentifiedSource`."""
        key = source_of(self._access.credentials).current()
        parts = key.access_key_id, key.secret_access_key, key.session_token or ""
        return sha256("\0".join(parts).encode()).digest()

    def describe(self) -> DatasetInfo:
        """The dataset; registers it if given by its digest file. Raises what `Client.register` and `Client.dataset` raise."""
        dataset = self._dataset
        if isinstance(dataset, DatasetInfo):
            return dataset
        if not is_file(dataset):
            return self._known(os.fspath(dataset))
        text = os.fspath(dataset)
        access = self._access
        return self._client.register(
            PurePosixPath(text).stem,
            text,
            caching=access.caching,
            by_content=True,
            request_payer=access.request_payer,
        )

    def _known(self, name: str) -> DatasetInfo:
        try:
            return self._client.dataset(name)
        except UnknownDataset as error:
            if not os.path.isfile(name):
                raise
            hint = f"To register the digest file of this name, say './{name}'."
            raise UnknownDataset(error.status, error.code, f"{error.detail} {hint}") from None

    def reader(self, info: DatasetInfo, stats: Stats) -> BatchReader | SampleReader:
        """A reader of batches from the gateway."""
        access = self._access
        reader = BatchReader(
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
        return reader if info.members == 1 else SampleReader(reader, lambda: self._member_names(info))

    def resident(self, info: DatasetInfo) -> dict[str, float]:
        """The cached share of the dataset, requested from the gateway once; empty if it does not answer."""
        try:
            known = self._brief_client.dataset(info.id)
        except LarderError:
            return {}
        return {"": min(1.0, known.resident / known.items)} if known.items else {}

    def cached_items(self, info: DatasetInfo) -> NDArray[np.bool_] | None:
        """By item, or sample, whether the gateways hold it now, requested once; ``None`` if they do not answer."""
        brief = self._brief_client
        reader = BatchReader(
            brief.endpoint, info, credentials=self._access.credentials, timeout=brief.timeout, retry=brief.retry
        )
        try:
            items = reader.lookup(np.arange(info.items, dtype=np.uint32))
        except LarderError:
            return None
        finally:
            reader.close()
        return np.asarray(items.reshape(-1, info.members).all(axis=1))

    def results(self, info: DatasetInfo, name: str, owner: str, versions: int = 1) -> GatewayResults:
        """Results of pipelines at the gateway."""
        access, names = self._access, ResultNames(name, owner, versions)
        return GatewayResults(
            self._client.endpoint, info, names, credentials=access.credentials, timeout=access.timeout
        )

    def locations(self, info: DatasetInfo, start: int = 0, count: int | None = None) -> Iterable[ItemLocation]:
        """Locations of the items, from the gateway; for samples, those of their first members."""
        if info.members == 1:
            return self._locations(info, start, count)
        members = self._locations(info, start * info.members, None if count is None else count * info.members)
        first = islice(members, 0, None, info.members)
        return (replace(location, index=location.index // info.members) for location in first)

    def lengths(self, info: DatasetInfo) -> NDArray[np.int64]:
        """The lengths of the items, from the gateway; for samples, the sums over their members."""
        sizes = (_WHOLE if place.size is None else place.size for place in self._locations(info, 0, None))
        lengths = np.fromiter(sizes, np.int64, info.samples * info.members).reshape(-1, info.members)
        return np.where((lengths < 0).any(axis=1), _WHOLE, lengths.sum(axis=1))

    def _member_names(self, info: DatasetInfo) -> tuple[str, ...]:
        members = [split_name(location.key)[1] for location in self._locations(info, 0, info.members)]
        # Parts of one object share a key, so they are numbered.
        return tuple(members) if len(set(members)) == len(members) else tuple(map(str, range(len(members))))

    def _locations(self, info: DatasetInfo, start: int, count: int | None) -> Iterator[ItemLocation]:
        patience, given = Patience(self._in_training or Retry()), 0
        while True:
            try:
                rest = None if count is None else count - given
                for location in self._patient_client.each_item(self._listed_as(info), start + given, rest):
                    given += 1
                    yield location
                return
            except UnknownDataset:
                # Behind a balancer, the next node may not know the registration yet.
                pause = patience.pause("registration")
                if pause is None or isinstance(self._dataset, DatasetInfo) or not is_file(self._dataset):
                    raise
                with suppress(GatewayUnavailable):
                    self.describe()
                time.sleep(pause)

    def _listed_as(self, info: DatasetInfo) -> str:
        # Equal items may be registered under several names, with several locations.
        with suppress(UnknownDataset):
            if self._patient_client.dataset(info.name).id == info.id:
                return info.name
        return info.id

    def _digest_file(self) -> str | os.PathLike[str] | None:
        dataset = self._dataset
        if self._access.digest_file is not None or isinstance(dataset, DatasetInfo) or not is_file(dataset):
            return self._access.digest_file
        return dataset


@dataclass(slots=True)
class Item:
    """One item, the argument of a transform and of a pipeline's first stage.

    Args:
        index: index in the dataset.
        data: its bytes, a part of the batch's buffer, which lives as long as any reference to it.
        name: bucket and key, if the dataset has ``keys=True``.
        dataset: name of its dataset, as given, in a `larder.Mix`.
        offset: its first byte in its object, if the dataset has ``keys=True`` and the item is a part; for a sample, that of its
            first member.
    """

    index: int
    data: memoryview
    name: tuple[str, str] | None = None
    dataset: str = ""
    offset: int | None = None

    def __repr__(self) -> str:
        place = "" if self.name is None else f", 's3://{self.name[0]}/{self.name[1]}'"
        return f"Item({self.index}, {len(self.data)} bytes{place})"

    @property
    def members(self) -> dict[str, memoryview]:
        """The members of a sample (``larder digest build --tar-samples`` or ``--samples``), parts of ``data``, by their names
        from the first dot on, in lower case, such as ``jpg`` and ``cls``.

        Raises:
            ValueError: the item is not a sample.
        """
        try:
            return sample_members(self.data)
        except TarError as error:
            raise ValueError(
                f"item {self.index} is no sample ({error}): build the digest file with --tar-samples or --samples, or use "
                "item.data, the bytes of the whole item"
            ) from error

    @property
    def bucket(self) -> str:
        """The bucket of the object that holds the item.

        Raises:
            LarderError: the dataset does not have ``keys=True``.
        """
        return self._named()[0]

    @property
    def key(self) -> str:
        """The key of the object that holds the item.

        Raises:
            LarderError: the dataset does not have ``keys=True``.
        """
        return self._named()[1]

    def _named(self) -> tuple[str, str]:
        # An empty string would silently produce wrong labels.
        if self.name is None:
            raise LarderError("items have bucket and key only if the dataset is created with keys=True")
        return self.name


class ItemPlace(NamedTuple):
    """The location of an item; without ``offset`` it is a whole object."""

    bucket: str
    key: str
    offset: int | None


def item_at(index: int, data: memoryview, place: ItemPlace | None, dataset: str = "") -> Item:
    """An item, with its place if the dataset has ``keys``."""
    if place is None:
        return Item(index, data, None, dataset)
    return Item(index, data, (place.bucket, place.key), dataset, place.offset)


class Keys:
    """Bucket and key by item index, for transforms that need them (a label is often part of the key).

    Packed into one byte string and three arrays: Python strings for ten million items would take gigabytes in every worker, and
    reference counting would copy them into each.

    Args:
        locations: of all items, in order; consumed one by one.
    """

    def __init__(self, locations: Iterable[ItemLocation]) -> None:
        buckets: dict[str, int] = {}
        bucket_of, ends, text, offsets = array("I"), array("Q", [0]), bytearray(), array("q")
        for location in locations:
            bucket_of.append(buckets.setdefault(location.bucket, len(buckets)))
            text += location.key.encode()
            ends.append(len(text))
            offsets.append(_WHOLE if location.offset is None else location.offset)
        self._offsets = np.frombuffer(offsets, np.int64)
        self._buckets = list(buckets)
        self._bucket_of = np.frombuffer(bucket_of, np.uint32)
        self._ends = np.frombuffer(ends, np.uint64)
        self._text = text

    def __len__(self) -> int:
        return len(self._bucket_of)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return map(self.__getitem__, range(len(self)))

    def place(self, index: int) -> ItemPlace:
        """Bucket, key and offset of an item."""
        offset = int(self._offsets[index])
        return ItemPlace(*self[index], None if offset == _WHOLE else offset)

    def __getitem__(self, index: int) -> tuple[str, str]:
        start, end = int(self._ends[index]), int(self._ends[index + 1])
        return self._buckets[int(self._bucket_of[index])], self._text[start:end].decode()


def name_of(dataset: DatasetName) -> str:
    """A dataset in words: the name or digest file by which it was given."""
    return dataset.name if isinstance(dataset, DatasetInfo) else os.fspath(dataset)


def is_file(dataset: str | os.PathLike[str]) -> bool:
    """Whether a name means a digest file rather than a registered dataset."""
    return not isinstance(dataset, str) or "/" in dataset or dataset.endswith((".parquet", ".digest"))
