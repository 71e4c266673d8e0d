"""The options of a loader, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from numpy.typing import NDArray

from larder.base.options import whole_number
from larder.http.credentials import Credentials, CredentialSource
from larder.planner.lengths import ItemLengths
from larder.reading.mixing import Mix
from larder.reading.source import Access, DatasetName, Source, access_of
from larder.training.job import Job

BYTES = "bytes"
"""The lengths that the digest file states."""
_SUBSTITUTE = 10
"""Candidates per item of a batch in random order."""
_ALIKE = 2
"""The same for batches by length: more candidates would differ more in length."""
_CHOICES = {
    "order": ("random", "sequential"),
    "tail": ("short", "drop", "pad"),
    "on_missing": ("raise", "skip"),
    "group": ("mixed", "unit"),
}

_SEQUENTIAL: dict[str, tuple[str | int | None, ...]] = {
    "group": ("mixed",),
    "substitute": (None, 1),
}
"""The options allowed with a sequential order."""


class LoaderOptions(TypedDict, total=False):
    """The options of a `Loader` that have a default.

    Args:
        order: ``"random"`` (default), or ``"sequential"`` for evaluation: the order of the dataset, and the same batches with any
            number of workers; every item once, unless ``tail`` says otherwise. With several ranks, item ``i`` goes to rank ``i %
            world``.
        substitute: candidates per item of a batch (10; with ``lengths`` 2). More candidates find more items in the cache; 1
            follows the order of the epoch exactly, as sequential orders do.
        seed: seed of the order (0). Runs with the same seed read an epoch in the same order.
        tail: end of an epoch. ``"short"`` (default): the last batch is smaller; ``"drop"``: full batches only; ``"pad"``: the
            last batch is filled with repetitions. Every rank gets equally many batches; where that is impossible with
            ``"short"``, an epoch begins with `UnevenRanks`.
        group: ``"mixed"`` (default): batches from the whole dataset; ``"unit"``: from one stretch of it where possible.
        reuse: whether to take early what other jobs on the dataset have just read (``True``), so that one read of the origin
            serves all jobs. ``False``: substitutes come from the next batches of the epoch's own order only, which stays nearly
            the order of the seed, at the price of more reads.
        on_missing: for an unavailable item: ``"raise"`` (default), or ``"skip"`` it and count it.
        ahead: 1 (default): fetch the next batch while the current one is used, and up to three small ones alongside it if what
            they load is not stored; 0: fetch on request only.
        job: the training run, a `larder.Job` or only its name, for the gateway's decisions ("").
        access: credentials, timeouts and fallback.
        credentials: an access key of the gateway, instead of ``access``.
        source: source of the items instead of ``endpoint`` and ``dataset``, such as `larder.testing.MemorySource`.
        lengths: batches of items of near equal length, out of the next hundred batches of a worker's share (a fifth of it at
            most), so that little is padded: ``"bytes"`` for those of the digest file, or a whole number for each item (of a
            mixture, of its datasets one after the other), such as its number of tokens. ``None`` (default) follows the order.
    """

    order: str
    substitute: int
    seed: int
    tail: str
    group: str
    reuse: bool
    on_missing: str
    ahead: int
    job: str | Job
    access: Access
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None
    source: Source
    lengths: str | Sequence[int] | NDArray[Any] | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked options of a loader."""

    batch_size: int
    order: str = "random"
    substitute: int | None = None
    seed: int = 0
    tail: str = "short"
    group: str = "mixed"
    reuse: bool = True
    on_missing: str = "raise"
    ahead: int = 1
    job: str | Job = ""
    access: Access | None = None
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None
    source: Source | None = None
    lengths: str | ItemLengths | Sequence[int] | NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if self.credentials is not None:
            object.__setattr__(self, "access", access_of(self.access, self.credentials))
            object.__setattr__(self, "credentials", None)
        whole = {"batch_size": whole_number("batch_size", self.batch_size, 1), "seed": whole_number("seed", self.seed)}
        if self.substitute is not None:
            whole["substitute"] = whole_number("substitute", self.substitute, 1)
        whole["ahead"] = whole_number("ahead", self.ahead, 0, 1)
        for name, number in whole.items():
            object.__setattr__(self, name, number)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {getattr(self, name)!r}")
        if isinstance(self.lengths, str) and self.lengths != BYTES:
            raise ValueError(f"lengths must be {BYTES!r} or a whole number for each item, not {self.lengths!r}")
        if self.lengths is not None and not isinstance(self.lengths, (str, ItemLengths)):
            object.__setattr__(self, "lengths", ItemLengths(self.lengths))
        if self.lengths is not None and (self.sequential or self.group != "mixed"):
            raise ValueError("batches by length have an order of their own: leave lengths out, or order and group")
        for name, needed in _SEQUENTIAL.items():
            if self.sequential and getattr(self, name) not in needed:
                raise ValueError(f"a sequential order is complete and exact: leave {name} out")

    @property
    def sequential(self) -> bool:
        """Whether epochs have the order of the dataset."""
        return self.order == "sequential"

    @property
    def candidates(self) -> int:
        """Candidates per item of a batch."""
        if self.substitute is None:
            return 1 if self.sequential else _SUBSTITUTE if self.lengths is None else _ALIKE
        return self.substitute

    def check_mix(self, dataset: DatasetName | Mix) -> None:
        """Refuse options that a mixture of datasets cannot have, and a job of other datasets.

        Raises:
            ValueError: one is given; the message names it.
        """
        names = dataset.names if isinstance(dataset, Mix) else ()
        if not isinstance(self.job, str) and self.job.datasets != names:
            raise ValueError(
                f"the job {self.job.name!r} is for {', '.join(self.job.datasets) or 'one dataset'}, but the loader reads "
                f"{', '.join(names) or 'one dataset'}: give both the same dataset or Mix"
            )
        if not isinstance(dataset, Mix):
            return
        if self.access is not None and self.access.digest_file is not None:
            raise ValueError("digest_file is of one dataset; name each dataset of a mixture by its digest file")
        if self.sequential and dataset.weights is not None:
            raise ValueError("a sequential order has every item once: give the mixture no weights")
        if self.group != "mixed":
            raise ValueError("batches of a mixture are from several datasets: leave group out")

    @property
    def job_name(self) -> str:
        """Name of the training run; empty without one."""
        return self.job if isinstance(self.job, str) else self.job.name

    def __str__(self) -> str:
        changed = [setting.name for setting in fields(self) if getattr(self, setting.name) != setting.default]
        job = [f"job={self.job_name!r}"] if self.job_name else []
        shown = [f"{name}={getattr(self, name)!r}" for name in changed if name not in ("job", "access", "source")]
        return ", ".join(shown + job)
