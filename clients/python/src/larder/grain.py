"""A data source for Grain (https://google-grain.readthedocs.io), the loader of JAX programs. It imports no Grain.

Grain reads sources one element at a time, in several threads. So a batch is best read where Grain batches *indices*: one
request brings all of them::

    source = CachedSource("http://gateway:9000", "train", transform=decode)
    batches = grain.MapDataset.range(len(source)).seed(7).shuffle().repeat(90).batch(256).map(source.read)
    iterator = iter(batches.to_iter_dataset())          # its get_state and set_state resume exactly

``grain.MapDataset.source(source)`` and ``grain.DataLoader`` work too, with one request for each item.

Grain decides the order, so the gateway cannot prefer cached items; `larder.Loader` lets it, and needs no PyTorch
either.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypedDict

import numpy as np
from numpy.typing import NDArray

from larder.base.later import Unpack
from larder.base.options import refuse_unknown
from larder.base.stats import Stats
from larder.http.credentials import Credentials, CredentialSource
from larder.reading.mixing import refuse_mix
from larder.reading.source import Access, DatasetName, Item, Source, item_at, name_of
from larder.training.job import Job
from larder.training.loader import Loader, LoaderOptions
from larder.training.run import counts_of, item_error


class SourceOptions(TypedDict, total=False):
    """The options of a `CachedSource` that have a default.

    Args:
        job: the training run, a `larder.Job` or only its name, for the gateway's decisions ("").
        access: credentials, timeouts and fallback.
        credentials: an access key of the gateway, instead of ``access``.
        source: as in `larder.training.loader.LoaderOptions`.
    """

    job: str | Job
    access: Access
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None
    source: Source


class CachedSource:
    """Items of a dataset at a gateway, by index. Can be pickled, so it works in Grain's worker processes.

    Args:
        endpoint: address of the gateway.
        dataset: its name, its digest file (a path or ``s3://bucket/key``), or the result of `larder.Client.register`.
        transform: turns an `Item` into an element; the item's ``bytes`` by default.
        keys: whether items have bucket and key.
        options: see `SourceOptions`.

    Raises:
        ValueError: invalid value of an option.
        TypeError: unknown option.
    """

    def __init__(
        self,
        endpoint: str,
        dataset: DatasetName,
        *,
        transform: Callable[[Item], Any] | None = None,
        keys: bool = False,
        **options: Unpack[SourceOptions],
    ) -> None:
        refuse_unknown(options, "transform", "keys", *SourceOptions.__annotations__)
        self._name = name_of(refuse_mix(dataset, type(self).__name__))
        self._transform = transform
        self._keys = keys
        given: LoaderOptions = {**options}  # type: ignore[typeddict-item]
        self._loader = Loader(endpoint, dataset, batch_size=1, **given)

    def __repr__(self) -> str:
        """Equal for equal data: Grain compares it with the text in a restored state."""
        return f"CachedSource({self._name!r})"

    def __len__(self) -> int:
        """Number of items."""
        return self._loader.info.samples

    def __getitem__(self, index: SupportsIndex) -> Any:
        """One element; negative indices count from the end. Raises what `read` raises."""
        number, items = operator.index(index), len(self)
        if not -items <= number < items:
            raise IndexError(f"index out of range: item {number} of a dataset of {items} items")
        return self.read([number % items])[0]

    def read(self, indices: Sequence[SupportsIndex] | NDArray[np.integer[Any]]) -> list[Any]:
        """The elements of these items, in this order, by one request; an index may come more than once.

        Raises:
            IndexError: no such item.
            ItemError: an item is unavailable.
        """
        loader = self._loader
        wanted = [operator.index(index) for index in indices]
        if outside := next((number for number in wanted if not 0 <= number < len(self)), None):
            raise IndexError(f"index out of range: item {outside} of a dataset of {len(self)} items")
        if not wanted:
            return []
        fetched = loader.reader.fetch(
            np.array(wanted, np.uint32), mode="exact", ordered=True, job=loader.settings.job_name
        )
        if fetched.failed:
            raise item_error(next(iter(fetched.failed.values())))
        for name, value in counts_of(fetched.flags, fetched.data).items():
            loader.stats.add(name, value)
        if self._transform is None:
            return [bytes(data) for data in fetched.data]
        places = loader.keys if self._keys else None
        return [
            self._transform(item_at(number, data, None if places is None else places.place(number)))
            for number, data in zip(wanted, fetched.data, strict=True)
        ]

    def stats(self) -> Stats:
        """Counts of this process."""
        return self._loader.stats
