"""A sampler by importance: items whose losses rank high come more often (SHADE, FAST 2023).

::

    dataset = CachedMapDataset("http://gateway:9000", "train", transform=decode, ids=True, job=job)
    sampler = ImportanceSampler(dataset, unseen=0.25)
    loader = DataLoader(dataset, batch_size=256, sampler=sampler, num_workers=4)
    losses_of = per_sample(torch.nn.CrossEntropyLoss())
    for epoch in range(90):
        for ids, (images, labels) in loader:
            losses = losses_of(model(images), labels)
            losses.mean().backward()
            sampler.update(ids, losses)
            ...

`larder.planner.importance` decides; this module connects it to torch's loader, ranks and tensors. Ranks of ``torch.distributed``
exchange their scores when an iteration begins. That is a collective call: every rank must iterate equally often, as in all
distributed training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed
from torch.utils.data import IterableDataset, Sampler

from larder.base.later import Unpack
from larder.base.options import refuse_unknown, whole_number
from larder.base.ranks import Ranks, environment_ranks, given_ranks
from larder.planner.draw import REPEATS, DrawRule
from larder.planner.importance import Contribution, ImportancePlan
from larder.planner.scores import NEVER
from larder.torch.mapped import CachedMapDataset
from larder.torch.ranks import distributed_ranks
from larder.training.importance import ImportanceReport
from larder.training.job import Job

MULTINOMIAL = "multinomial"
_MAX_ITEMS = (1 << 32) - 1


class ImportanceOptions(TypedDict, total=False):
    """The options of an `ImportanceSampler` that have a default.

    Args:
        seed: of the lists (0); the same in all ranks.
        guard: use less of ``unseen`` while the loss does not fall or the reported accuracy does, and do not prefer items whose
            losses stay high, such as those with wrong labels (``True``); see `larder.planner.guard` and `larder.planner.scores`.
        repeats: how often the most important items come in an epoch, on average (4); more than 1.
        batch_size: items per batch, for the loader's ``batch_sampler=``. If left out, single items for ``sampler=``.
        drop_last: with ``batch_size``: leave out a last batch that is not full (``False``).
        ranks: rank and number of ranks. If left out, those of ``torch.distributed``, else ``RANK`` and ``WORLD_SIZE``.
    """

    seed: int
    guard: bool
    repeats: float
    batch_size: int | None
    drop_last: bool
    ranks: tuple[int, int] | None


class ImportanceSampler(Sampler[Any]):
    """Samples the items of a map-style dataset by importance, for torch's `DataLoader`.

    Every iteration is an epoch of as many entries as the dataset has items. The first epoch has every item once. If no entry of
    an epoch was trained, the next iteration repeats it.

    With a `CachedMapDataset` that has a `larder.Job`, rank 0 sends the gateways the scores and the list of each epoch. Ranks that
    cannot exchange scores know only their own items. Each sends them if it has a job of its own (``ranks=1``). If they share a
    job, none does, because the cache would keep the items of one rank and refuse those of all others.

    Args:
        dataset: anything with a length; items are its indices.
        unseen: share of the items that may stay unseen in an epoch, from 0 (every item comes) to 0.9. A cache with a share c of
            the items has at most c + ``unseen`` hits. ``"multinomial"``: draws as the paper describes them, without a bound.
        options: see `ImportanceOptions`.

    Raises:
        ValueError: a value is out of range; the message names it.
        TypeError: unknown option, or a dataset without indices.
    """

    def __init__(
        self, dataset: Sized, *, unseen: float | Literal["multinomial"], **options: Unpack[ImportanceOptions]
    ) -> None:
        refuse_unknown(options, "unseen", *ImportanceOptions.__annotations__)
        # A pipeline and a Loader have a length too: that of their batches.
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise TypeError(
                f"an ImportanceSampler chooses items by index, which a {type(dataset).__name__} does not have: use a "
                "larder.torch.CachedMapDataset with a transform, one for each dataset of a mixture, or any dataset with a length "
                "and indices"
            )
        self._dataset = dataset
        self._batch_size = _positive("batch_size", options.get("batch_size"))
        self._drop_last = options.get("drop_last", False)
        ranks = options.get("ranks")
        if ranks is not None and not (isinstance(ranks, tuple | list) and len(ranks) == len(Ranks._fields)):
            raise ValueError(f"ranks must be (rank, number of ranks), not {ranks!r}")
        self._ranks = None if ranks is None else given_ranks(*ranks)
        self._seed, self._guard = whole_number("seed", options.get("seed", 0)), options.get("guard", True)
        self._rule = _rule(unseen, options.get("repeats", REPEATS))
        self._made: ImportancePlan | None = None
        self._wanted: int | None = None
        self._resumed = self._complete = False

    def __repr__(self) -> str:
        unseen = MULTINOMIAL if self._rule.unseen is None else self._rule.unseen
        return f"ImportanceSampler(unseen={unseen!r}, seed={self._seed})"

    def __iter__(self) -> Iterator[Any]:
        # The epoch begins with the first item, because frameworks make iterators that they never use.
        share = self._begin().tolist()
        size = self._batch_size
        if size is None:
            yield from share
        else:
            end = len(share) - len(share) % size if self._drop_last else len(share)
            yield from (share[start : start + size] for start in range(0, end, size))
        self._complete = True

    def __len__(self) -> int:
        """Number of items in a whole epoch for this rank, or of batches if the sampler makes batches."""
        entries = -(-len(self._dataset) // self._world().world)
        if self._batch_size is None:
            return entries
        return entries // self._batch_size if self._drop_last else -(-entries // self._batch_size)

    def update(self, ids: Any, losses: Any) -> None:
        """Score the samples of a mini-batch by their losses. Call it for every mini-batch of the loader, in order.

        Losses on a GPU are copied, which waits for the GPU. Values that are not finite are left out and counted.

        Args:
            ids: of the samples, in the loader's form: a tensor, an array or a list.
            losses: one for each sample; gradients are ignored. See `larder.torch.per_sample`.

        Raises:
            TypeError: ``ids`` are missing or not whole numbers, or ``losses`` are not numbers.
            ValueError: ``ids`` and ``losses`` do not each have one number per sample.
            IndexError: there is no such item.
        """
        self._plan.update(_array(ids), _array(losses))

    def accuracy(self, value: float) -> None:
        """Report the accuracy on held-out items after an epoch, as a share or in percent; optional.

        With ``guard``, the next epoch is a shuffle of all items if this is more than 1 % below the best reported so far. Of
        several ranks' reports the first rank's counts.

        Raises:
            ValueError: it is negative or not finite.
        """
        self._plan.report_accuracy(float(value))

    def weights(self, ids: Any) -> torch.Tensor:
        """p/q of Eq. 1 for samples of the current epoch: the mean of losses times these weights has the same expectation as the
        mean over all items. The result is float32, on the device of ``ids``.

        Raises:
            TypeError: ``ids`` are not whole numbers.
            ValueError: ``ids`` are not one number per sample.
            IndexError: there is no such item, or this rank does not draw from it.
        """
        weights = torch.from_numpy(self._plan.weights(_array(ids)))
        return weights.to(ids.device) if isinstance(ids, torch.Tensor) else weights

    def scores(self) -> NDArray[np.float16]:
        """The scores by which items are drawn and kept in the cache: the latest ones, but the mean for items whose labels may be
        wrong. NaN for items that were never scored."""
        return self._plan.believed

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration's epoch, as for `DistributedSampler`. Optional; the rest of a loaded epoch
        stays."""
        self._wanted = whole_number("epoch", epoch, 0)

    def stats(self) -> dict[str, Any]:
        """Facts about the current epoch, see `ImportancePlan.stats`; ``unseen``: share of items that it leaves out."""
        return self._plan.stats()

    def state_dict(self) -> dict[str, Any]:
        """The state to save, of JSON types: the rest of the epoch after the last update, and the scores.

        About four MB for a million items. Between two epochs, or without ``torch.distributed``, ranks differ: save each
        rank's, or only rank 0's, which every rank can load, also with another number of ranks.
        """
        return self._plan.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the next iteration, which has the rest of the saved epoch. All ranks must load states of the same step.

        Raises:
            StateError: the state is damaged, or of another dataset.
        """
        self._plan.load_state_dict(state)
        self._resumed, self._complete, self._wanted = self._plan.epoch != NEVER, False, None

    @property
    def _plan(self) -> ImportancePlan:
        if self._made is None:
            items = len(self._dataset)
            if not 0 < items <= _MAX_ITEMS:
                raise ValueError(f"a dataset of {items} items cannot be sampled")
            self._made = ImportancePlan(items, self._rule, seed=self._seed, guard=self._guard)
        return self._made

    def _begin(self) -> NDArray[np.uint32]:
        plan, (rank, world) = self._plan, self._world()
        together = distributed_ranks() == (rank, world) and world > 1
        cached = self._cached() if rank == 0 and (together or world == 1) else None
        if together:
            gathered = _gathered(plan.contribution(cached), world)
            plan.follow(gathered)
            cached = gathered[0].cached
        epoch, self._wanted = self._wanted, None
        untrained = plan.epoch != NEVER and not (self._complete or plan.trained)
        if (self._resumed or untrained) and epoch in (None, plan.epoch):
            self._resumed = self._complete = False
            rest = plan.rest(rank, world)
            if len(rest) >= (self._batch_size or 1 if self._drop_last else 1):
                return rest  # a state saved after the last batch has no rest
        if together and plan.epoch != NEVER:
            plan.absorb(gathered)
        self._resumed = self._complete = False
        apart = world > 1 and not together
        share = plan.begin(plan.epoch + 1 if epoch is None else epoch, rank, world, apart=apart, cached=cached)
        self._report(rank, apart=apart)
        return share

    def _cached(self) -> NDArray[np.bool_] | None:
        """What the gateways hold now, if they keep items by this sampler's lists."""
        dataset = self._dataset
        return (
            dataset.cached_items() if isinstance(dataset, CachedMapDataset) and isinstance(dataset.job, Job) else None
        )

    def _report(self, rank: int, *, apart: bool) -> None:
        dataset = self._dataset
        job = dataset.job if isinstance(dataset, CachedMapDataset) else None
        # If the loop stops updating, the gateways' scores age, and gateways forget them.
        if self._plan.silent or not (isinstance(dataset, CachedMapDataset) and isinstance(job, Job)):
            return
        if job.ranks == 1 if apart else rank == 0:
            report = ImportanceReport(self._plan.epoch, self.scores(), self._plan.listed())
            job.report_importance(report, dataset.info)

    def _world(self) -> Ranks:
        return self._ranks or distributed_ranks() or environment_ranks()


def _rule(unseen: float | str, repeats: float) -> DrawRule:
    if isinstance(unseen, str) and unseen != MULTINOMIAL:
        raise ValueError(f"unseen must be a share of the items or {MULTINOMIAL!r}, not {unseen!r}")
    return DrawRule(None if isinstance(unseen, str) else unseen, repeats)


def _gathered(contribution: Contribution, world: int) -> list[Contribution]:
    """Every rank's contribution, by rank."""
    gathered: list[Any] = [None] * world
    distributed.all_gather_object(gathered, contribution)
    return gathered


def _array(values: Any) -> Any:
    if isinstance(values, list | tuple):
        return [_array(value) for value in values]
    if not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def _positive(name: str, value: int | None) -> int | None:
    return None if value is None else whole_number(name, value, 1)
