"""A pipeline in the trainer: elements become a shuffled stream, then batches.

Both are functions of the order in which elements arrive, so a resumed epoch continues as if it had not stopped. The buffer of a
shuffle holds the first undelivered elements; after a resume it is filled with the same ones. The choice of the next one depends
on how many were delivered in the epoch.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np

from larder.base.errors import PipelineError
from larder.base.seeds import seed_of
from larder.pipelines.stages import Stage


@dataclass(slots=True, eq=False)
class Piece:
    """An element or a batch on its way to the training loop.

    Args:
        value: of the element, or of the batch.
        indices: items that it is made of.
        places: their places in the rank's share.
        empty: slots of batches that no item of the share filled, see `larder.planner.steps`.
        repeated: repetitions in the batch that replace elements that were left out.
    """

    value: Any
    indices: list[int]
    places: list[int]
    empty: int = 0
    repeated: int = 0


@dataclass
class BatchSizes:
    """The sizes of the batches to come.

    They are those of the epoch's plan: equally many batches on every rank. They are unknown only for a single rank that may leave
    elements out; then all batches except the last are full.

    Args:
        size: of a full batch.
        tail: ``"short"``, ``"drop"`` or ``"pad"``.
        filtered: whether elements may be left out.
        together: whether there are several ranks.
    """

    size: int
    tail: str = "short"
    filtered: bool = False
    together: bool = False
    _planned: deque[tuple[int, int]] = field(default_factory=deque)
    _seen: int = 0
    _empty: int = 0

    @property
    def planned(self) -> bool:
        """Whether the batches are those of the plan."""
        return self.size > 0 and (self.together or not self.filtered)

    def count(self, *, ends_batch: bool, empty: int = 0, lost: int = 0, kept: int = 1) -> None:
        """Count an element of the plan, in its order.

        Args:
            ends_batch: whether a batch of the plan ends with it.
            empty: slots of that batch that no item of the share filled.
            lost: slots that the element leaves empty because it is left out.
            kept: 1 if the element is kept, else 0.
        """
        self._seen += kept
        self._empty += empty + lost
        if ends_batch:
            self._planned.append((self._seen, self._empty))
            self._seen = self._empty = 0

    def complete(self, elements: int) -> bool:
        """Whether a batch of ``elements`` is complete."""
        if not self.planned:
            return elements == self.size
        return bool(self._planned) and elements == self._planned[0][0]

    def begin_next(self) -> int:
        """Move on from the complete current batch; returns the slots that it leaves empty."""
        return self._planned.popleft()[1] if self.planned and self._planned else 0

    @property
    def least(self) -> int:
        """Elements that a batch must have; repetitions fill it up."""
        full = self.tail == "pad" or (self.tail == "drop" and self.together)
        return self.size if full else int(self.together)


def shuffled(pieces: Iterable[Piece], size: int, seed: int, epoch: int, delivered: int) -> Iterator[Piece]:
    """The elements in a random order, chosen one by one among the first ``size`` remaining ones.

    Args:
        pieces: the elements.
        size: elements of the buffer.
        seed: of the pipeline.
        epoch: number of the epoch.
        delivered: elements already delivered in this epoch.
    """
    buffer: list[Piece] = []
    for piece in pieces:
        buffer.append(piece)
        if len(buffer) == size:
            yield buffer.pop(seed_of("larder/shuffle", seed, epoch, delivered) % size)
            delivered += 1
    while buffer:
        yield buffer.pop(seed_of("larder/shuffle", seed, epoch, delivered) % len(buffer))
        delivered += 1


def batched(pieces: Iterable[Piece], sizes: BatchSizes, collate: Callable[[list[Any]], Any]) -> Iterator[Piece]:
    """The elements in batches.

    Args:
        pieces: the elements.
        sizes: of the batches.
        collate: makes a batch of a list of elements.

    Raises:
        PipelineError: the elements do not form a batch; or all elements of this rank were left out while other ranks have
            batches.
    """
    waiting: list[Piece] = []
    recent: deque[Piece] = deque(maxlen=max(1, sizes.least) if sizes.filtered else 0)
    for piece in pieces:
        while sizes.complete(len(waiting)):  # the elements that ended these batches were left out
            yield _batch(waiting, sizes, recent or [piece], collate)
            waiting = []
        waiting.append(piece)
        recent.append(piece)
        del piece  # keep no reference to elements that the loop has received
        if sizes.complete(len(waiting)):
            yield _batch(waiting, sizes, recent, collate)
            waiting = []
    while sizes.complete(len(waiting)):
        yield _batch(waiting, sizes, recent, collate)
        waiting = []
    if waiting and sizes.tail != "drop":
        yield _batch(waiting, sizes, recent, collate)


def _batch(
    pieces: list[Piece], sizes: BatchSizes, recent: Iterable[Piece], collate: Callable[[list[Any]], Any]
) -> Piece:
    empty, missing = sizes.begin_next(), sizes.least - len(pieces)
    if missing > 0 and sizes.filtered:
        repeated = list(islice(cycle(pieces or recent), missing))
        if not repeated:
            raise PipelineError(
                "no element of this rank's share is left for a batch that the other ranks have: all were filtered or skipped"
            )
        pieces = pieces + repeated
    indices = [index for piece in pieces for index in piece.indices]
    try:
        value = collate([piece.value for piece in pieces])
    except PipelineError:
        raise
    except Exception as error:
        shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        raise PipelineError(f"items {shown} do not make a batch: {type(error).__name__}: {error}") from error
    own = pieces[: len(pieces) - max(0, missing)] if sizes.filtered else pieces
    return Piece(value, indices, [place for piece in own for place in piece.places], empty, len(pieces) - len(own))


def stack(elements: list[Any]) -> Any:
    """A batch: arrays and tensors stacked, numbers as an array, dicts and tuples by member, everything else as a list.

    Raises:
        ValueError: the elements have different types, members or shapes; the message says which.
    """
    return _stacked(elements, "the element")


def _stacked(values: list[Any], where: str) -> Any:
    first = values[0]
    kinds = {type(value) for value in values}
    if len(kinds) > 1 and not kinds <= {int, float, bool}:
        raise ValueError(f"{where} has several types: {', '.join(sorted(kind.__name__ for kind in kinds))}")
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            raise ValueError(f"{where} has different keys")
        return {key: _stacked([value[key] for value in values], f"{where}[{key!r}]") for key in first}
    if isinstance(first, tuple | list):
        if any(len(value) != len(first) for value in values):
            raise ValueError(f"{where} has different lengths: {sorted({len(value) for value in values})}")
        members = [_stacked([value[number] for value in values], f"{where}[{number}]") for number in range(len(first))]
        return tuple(members) if isinstance(first, tuple) else members
    if isinstance(first, bool | int | float | complex | np.generic) and not isinstance(first, str | bytes):
        return np.asarray(values)
    if isinstance(first, np.ndarray) or _is_tensor(first):
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) > 1:
            raise ValueError(f"{where} has different shapes: {', '.join(map(str, sorted(shapes)))}")
        return np.stack(values) if isinstance(first, np.ndarray) else sys.modules["torch"].stack(values)
    return values


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@dataclass(frozen=True)
class PipelineStages:
    """The stages of a pipeline.

    Args:
        elements: stages on single elements.
        shuffle: size of the shuffle's buffer; 0 without one.
        batch: elements of a batch; 0 without batches.
        tail: of batches: ``"short"``, ``"drop"`` or ``"pad"``.
        collate: makes a batch of a list of elements.
        batches: stages on batches.
        count: number of stages.
    """

    elements: tuple[Stage, ...] = ()
    shuffle: int = 0
    batch: int = 0
    tail: str = "short"
    collate: Callable[[list[Any]], Any] = stack
    batches: tuple[Stage, ...] = ()
    count: int = 0
