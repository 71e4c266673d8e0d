"""The progress of an epoch, as a value that can be saved, read, edited and loaded.

The state of one rank, in JSON::

    {"version": 4,
     "dataset": "9f2c...",               the dataset's id
     "items": 1281167,                   items in it
     "seed": 0, "epoch": 3,              the job's seed, and the epoch that is under way
     "layout": {"kind": "shuffled", "partitions": 10, "units": 10, "order_seed": "00ff..."},
     "group": "mixed",                   with these, the arguments of ``EpochOrder``
     "base": null,                       positions of the epoch's order that were delivered before the ranks shared the rest
     "world": 8, "rank": 0,              whose state this is
     "done": {"upto": 1600, "bits": ""}, places of this rank's share that are delivered: here the first 1600
     "skipped": 0, "padded": 0,          of these never delivered, as unavailable; and slots of batches without an item
                                         of the share: filled with a repetition, or left empty (see ``larder.planner.steps``)
     "owner": "5f1c..."}                 of a pipeline only: who claims results that are not stored yet

``base`` and ``done`` are sets (see ``NumberSet.to_json``). Neither the number of workers nor the batch size is in it, so both may
change. Another world size needs the states of all ranks, merged into one in which ``world`` and ``rank`` are null and the base is
all that they had done. The end of an epoch is the start of the next: no state says "epoch 3, all done".

Versions 1 to 3 also had layouts with a fixed division of the dataset into chunks (kinds ``striped`` and ``contiguous``), their
order in ``chunks`` (``first`` in version 1), and mixtures of such datasets. Those orders are no longer made. A state with such an
order can be read only at the start of an epoch; shuffled and sequential epochs are resumed unchanged.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from larder.base.errors import StateError
from larder.base.options import whole_number
from larder.planner.layout import MOST_ITEMS, Layout
from larder.planner.numbers import NumberSet
from larder.planner.order import GROUPS, EpochOrder
from larder.planner.share import RankShare, block_starts
from larder.planner.steps import batches_left, refuse_uneven, share_size, slots_left

VERSION = 4
_FIELDS = frozenset(
    "version dataset items seed epoch layout group base world rank done skipped padded".split()  # noqa: SIM905
)
_OWNER = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Progress:
    """The part of an epoch delivered to one rank or, if ``rank`` and ``world`` are None, to all. The module describes the
    fields."""

    dataset: str
    layout: Layout
    seed: int
    epoch: int
    group: str = "mixed"
    base: NumberSet = field(default_factory=NumberSet)
    world: int | None = None
    rank: int | None = None
    done: NumberSet = field(default_factory=NumberSet)
    skipped: int = 0
    padded: int = 0
    owner: str = ""

    @classmethod
    def start(cls, dataset: str, order: EpochOrder, rank: int | None = None, world: int | None = None) -> "Progress":
        """The state at the start of an epoch."""
        return cls(dataset, order.layout, order.seed, order.epoch, order.group, world=world, rank=rank)

    def order(self) -> EpochOrder:
        """The order of the current epoch; that of a mixture is `larder.planner.mixing.MixedOrder`, which needs its datasets.

        Raises:
            StateError: the state is of a mixture.
        """
        if self.layout.kind == "mixed":
            raise StateError("this is the state of a mixture of datasets, but it is loaded for a single one")
        return EpochOrder(self.layout, seed=self.seed, epoch=self.epoch, group=self.group)

    @property
    def begun(self) -> bool:
        """Whether anything of the epoch was delivered or skipped."""
        return bool(self.done.stop or self.base.stop)

    def next_epoch(self) -> "Progress":
        """The start of the next epoch, for the same rank."""
        return Progress(
            self.dataset,
            self.layout,
            self.seed,
            self.epoch + 1,
            self.group,
            world=self.world,
            rank=self.rank,
            owner=self.owner,
        )

    def of_rank(self, rank: int, world: int) -> "Progress":
        """This state, converted for ``rank`` of ``world``.

        Raises:
            StateError: it is of another rank or world size.
        """
        if (self.rank, self.world) == (rank, world):
            return self
        if self.rank is not None and self.world == 1:
            return merge([self]).of_rank(rank, world)
        if self.rank is not None:
            raise StateError(
                f"this is the state of rank {self.rank} of {self.world}, but it is loaded by rank {rank} of {world};"
                " merge the states of all ranks and load the result in each"
            )
        return replace(self, rank=rank, world=world)

    def share(self) -> RankShare:
        """The rank's share, and the rest of it; the state must be that of a rank."""
        rank, world = self._owner()
        return RankShare(self.layout.items, self.base, self.done, rank, world)

    @property
    def used(self) -> int:
        """Slots of the delivered batches; equal for all ranks at the same step."""
        return len(self.done) - self.skipped + self.padded

    def batches(self, batch_size: int, tail: str) -> int:
        """Number of batches left in the epoch; equal for all ranks at the same step."""
        left, world = self.layout.items - len(self.base), self._owner()[1]
        return batches_left(left, world, used=self.used, batch_size=batch_size, tail=tail)

    def slots(self, batch_size: int, tail: str) -> int:
        """Number of slots that these batches take."""
        left, world = self.layout.items - len(self.base), self._owner()[1]
        return slots_left(left, world, used=self.used, batch_size=batch_size, tail=tail)

    def refuse_uneven(self, batch_size: int, tail: str, *, remedy: str = "") -> None:
        """Refuse to begin an epoch in which ranks cannot have equally many batches.

        An epoch that has begun is never refused: a rank that lacks an item for a batch gets a repetition.

        Raises:
            UnevenRanks: see `larder.planner.steps.refuse_uneven`.
        """
        if not self.begun:
            refuse_uneven(self.layout.items, self._owner()[1], batch_size, tail, remedy=remedy)

    def settled(self, batch_size: int, tail: str) -> "Progress":
        """This state, or the start of the next epoch if no batch is left in this one."""
        return self if self.batches(batch_size, tail) else self.next_epoch()

    def with_places(self, places: NDArray[np.int64], *, skipped: int = 0, padded: int = 0) -> "Progress":
        """This state with more places, of which ``skipped`` were not delivered, and with ``padded`` repetitions."""
        done = self.done.with_numbers(places)
        return replace(self, done=done, skipped=self.skipped + skipped, padded=self.padded + padded)

    def skip_batches(self, batches: int, batch_size: int, tail: str) -> "Progress":
        """This rank's state as if its next batches had been delivered, up to the end of the epoch.

        Args:
            batches: how many to skip.
            batch_size: items of a full batch.
            tail: as in ``EpochPlan``.

        Raises:
            ValueError: ``batches`` is not a whole number of at least 0.
        """
        batches = whole_number("batches", batches, 0)
        ahead = self.batches(batch_size, tail)
        if batches >= ahead:
            return self.next_epoch() if ahead or batches else self
        share = self.share()
        passed = int(block_starts(np.array([batches], np.int64), share.left, ahead, batch_size)[0])
        places = share.places(np.arange(passed, dtype=np.int64))
        return self.with_places(places, padded=batches * batch_size - passed)

    def to_json(self) -> dict[str, Any]:
        """The state as the module describes it; as text, at most about two bits per item."""
        layout = self.layout
        return {
            "version": VERSION,
            "dataset": self.dataset,
            "items": layout.items,
            "seed": self.seed,
            "epoch": self.epoch,
            "layout": {
                "kind": layout.kind,
                "partitions": layout.partitions,
                "units": layout.units,
                "order_seed": f"{layout.order_seed:016x}",
            },
            "group": self.group,
            "base": self.base.to_json() if self.base.stop else None,
            "world": self.world,
            "rank": self.rank,
            "done": self.done.to_json(),
            "skipped": self.skipped,
            "padded": self.padded,
            **({"owner": self.owner} if self.owner else {}),
        }

    @classmethod
    def from_json(cls, state: object, *, dataset: str | None = None) -> "Progress":
        """Parse a state; ``dataset`` is the id that it must have.

        Raises:
            StateError: the state is damaged, of another version or of another dataset; the message names the field.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"a state is a JSON object, not {type(state).__name__}")
        version = state.get("version")
        if version not in range(1, VERSION + 1) or isinstance(version, bool):
            raise StateError(f'state field "version" is {version!r}; this package reads versions 1 to {VERSION}')
        if version != VERSION:
            state = _of_older(state)
        if wrong := (set(map(str, state)) - {"owner"}) ^ _FIELDS:
            raise StateError(f"state fields missing or unknown: {', '.join(sorted(wrong))}")
        if not isinstance(state["dataset"], str):
            raise StateError('state field "dataset" must be the id of a dataset')
        if dataset is not None and state["dataset"] != dataset:
            raise StateError(f"this is a state of dataset {state['dataset']}, but it is loaded for dataset {dataset}")
        return _read(state)

    def _owner(self) -> tuple[int, int]:
        if self.rank is None or self.world is None:
            raise StateError("this is the merged state of all ranks; only a rank has a share and batches of its own")
        return self.rank, self.world


def _read(state: Mapping[str, Any]) -> Progress:
    layout = _layout(state)
    if state["group"] not in GROUPS:
        raise StateError(f'state field "group" must be one of {", ".join(GROUPS)}, not {state["group"]!r}')
    if not isinstance(state["seed"], int) or isinstance(state["seed"], bool):
        raise StateError(f'state field "seed" must be a whole number, not {state["seed"]!r}')
    base = NumberSet() if state["base"] is None else NumberSet.from_json(state["base"], layout.items, "base")
    if (state["rank"] is None) != (state["world"] is None):
        raise StateError('state fields "world" and "rank" must both be numbers, or both null in a merged state')
    rank = world = None
    size = 0
    if state["rank"] is not None:
        world = _number(state, "world", 2**31, 1)
        rank = _number(state, "rank", world - 1)
        size = share_size(layout.items - len(base), rank, world)
    done = NumberSet.from_json(state["done"], size, "done")
    owner = state.get("owner", "")
    if "owner" in state and not (isinstance(owner, str) and _OWNER.fullmatch(owner)):
        raise StateError(f'state field "owner" must be 1 to 64 of A-Z a-z 0-9 . _ -, not {owner!r}')
    return Progress(
        state["dataset"],
        layout,
        state["seed"],
        _number(state, "epoch", 2**63),
        state["group"],
        base,
        world,
        rank,
        done,
        _number(state, "skipped", len(done)),
        _number(state, "padded", 2**63),
        owner,
    )


def _of_older(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state of version 1 to 3 in this version's fields; refused in the middle of an order that no longer exists."""
    layout, order = state.get("layout"), "first" if state.get("version") == 1 else "chunks"
    if not isinstance(layout, Mapping) or order not in state:
        raise StateError(f'state fields missing or unknown: version {state["version"]} has "layout" and "{order}"')
    kept = {name: value for name, value in state.items() if name != order}
    kind = layout.get("kind")
    if kind in ("shuffled", "sequential") and state[order] is None:
        return kept
    if kind not in ("striped", "contiguous", "shuffled", "mixed"):
        raise StateError(f'state field "layout.kind" of version {state["version"]} is {kind!r}')
    done = state.get("done")
    if (
        state.get("base") is not None
        or not isinstance(done, Mapping)
        or done.get("upto") != 0
        or done.get("bits") != ""
    ):
        raise StateError(
            f"this state of version {state['version']} is in the middle of epoch {state.get('epoch')}, in an order that "
            "this version does not make: finish the epoch with the version of larder that saved it, or begin the epoch again, "
            "without a state"
        )
    return kept if kind == "mixed" else {**kept, "layout": {**layout, "kind": "shuffled"}}


def _layout(state: Mapping[str, Any]) -> Layout:
    layout = state["layout"]
    if not isinstance(layout, Mapping) or set(layout) != {"kind", "partitions", "units", "order_seed"}:
        raise StateError('state field "layout" must be an object with "kind", "partitions", "units" and "order_seed"')
    items = _number(state, "items", MOST_ITEMS)
    partitions, units = (_number(layout, name, 2**31, 1, "layout.") for name in ("partitions", "units"))
    try:
        order_seed = int(layout["order_seed"], 16)
        return Layout(items, partitions, units, layout["kind"], order_seed)
    except (TypeError, ValueError) as error:
        raise StateError(f'state field "layout": {error}') from error


def _number(state: Mapping[str, Any], name: str, most: int, least: int = 0, prefix: str = "") -> int:
    value = state[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise StateError(f'state field "{prefix}{name}" must be a whole number from {least} to {most}, not {value!r}')
    return value


def union(parts: Iterable[Progress], *, batch_size: int, tail: str) -> Progress:
    """The state of a rank from those of all its workers (``EpochPlan.progress``), with their batch size and tail.

    Raises:
        StateError: the parts are not of one rank in one epoch.
    """
    parts = list(parts)
    if not parts:
        raise StateError("there are no states to unite")
    if len(parts) == 1:
        return parts[0]
    whole = parts[0]
    whole._owner()
    for part in parts[1:]:
        _same(whole, part, "dataset", "layout", "seed", "epoch", "group", "base", "world", "rank")
        whole = replace(
            whole,
            done=whole.done.union(part.done),
            skipped=whole.skipped + part.skipped,
            padded=whole.padded + part.padded,
        )
    return whole.settled(batch_size, tail)


def merge(states: Iterable[Progress]) -> Progress:
    """The state of all ranks from those of each rank; it loads under any world size, number of workers and batch size.

    A rank at the start of the next epoch has finished this one.

    Raises:
        StateError: ranks are missing or come twice, or the states are not of one epoch of one job.
    """
    states = list(states)
    if len(states) == 1 and states[0].rank is None:
        return states[0]
    _complete(states)
    epoch = min(state.epoch for state in states)
    whole = next(state for state in sorted(states, key=lambda state: not state.begun) if state.epoch == epoch)
    positions = []
    for state in states:
        _same(whole, state, "dataset", "seed", "group", "world")
        share = replace(whole, rank=state.rank, done=NumberSet()).share()
        if state.epoch == epoch:
            _same(whole, state, "layout", "base")
            delivered = state.done.numbers()
        elif state.epoch == epoch + 1 and not state.done.stop and not state.base.stop:
            _same(whole, state, "layout")
            delivered = np.arange(share.size, dtype=np.int64)
        else:
            raise StateError(
                f"rank {state.rank} is in epoch {state.epoch} while rank {whole.rank} is in epoch {epoch};"
                " the states to merge must be saved at the same step"
            )
        positions.append(share.positions(delivered))
    return _merged(whole, whole.base.with_numbers(np.concatenate(positions)))


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """``merge`` for states as they are saved.

    Raises:
        StateError: as ``merge`` and ``Progress.from_json``.
    """
    return merge(Progress.from_json(state) for state in states).to_json()


def _complete(states: list[Progress]) -> None:
    if not states:
        raise StateError("there are no states to merge")
    if any(state.rank is None for state in states):
        raise StateError("one of the states is merged already; merge the states of single ranks")
    world = states[0].world or 0
    ranks = Counter(state.rank for state in states)
    if twice := [rank for rank, count in ranks.items() if count > 1]:
        raise StateError(f"there is more than one state of rank {', '.join(map(str, twice))}")
    if missing := list(islice((rank for rank in range(world) if rank not in ranks), 20)):
        raise StateError(f"of the {world} ranks, the state of rank {', '.join(map(str, missing))} is missing")


def _merged(whole: Progress, base: NumberSet) -> Progress:
    merged = replace(whole, base=base, world=None, rank=None, done=NumberSet(), skipped=0, padded=0)
    return merged.next_epoch() if base.stop and len(base) == whole.layout.items else merged


def _same(progress: Progress, other: Progress, *names: str) -> None:
    for name in names:
        ours, theirs = getattr(progress, name), getattr(other, name)
        if ours != theirs:
            raise StateError(
                f'the states differ in "{name}": {ours} and {theirs}; they are not of one session of one job'
            )
