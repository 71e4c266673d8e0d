"""The trainer's part of a pipeline: elements become a shuffled stream, then batches.

Both are functions of the order in which elements arrive, so an epoch that resumes goes on as if it had not stopped. The buffer of
a shuffle holds the first elements that were not delivered; after a resume it is filled with the same ones. Which of them comes
next depends on how many were delivered in the epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from larder.errors import PipelineError
from larder.pipelines.stages import Stage
from larder.seeds import seed_of


@dataclass(slots=True, eq=False)
class Piece:
    """An element or a batch on its way to the training loop.

    Args:
        value: of the element, or of the batch.
        indices: items that it is made of.
        places: their places in the rank's share.
        ends_batch: whether a batch of the epoch's plan ends with it.
    """

    value: Any
    indices: list[int]
    places: list[int]
    ends_batch: bool = False


@dataclass
class BatchSizes:
    """The sizes of the batches to come, as the plan of the epoch has them: equally many batches on every rank.

    Args:
        size: of a full batch.
        filtered: whether a filter decides how many elements there are; then all batches but the last are full.
    """

    size: int
    filtered: bool
    _sizes: list[int] = field(default_factory=list)
    _seen: int = 0

    def count(self, piece: Piece) -> None:
        """Count an element of the plan, in its order."""
        self._seen += 1
        if piece.ends_batch:
            self._sizes.append(self._seen)
            self._seen = 0

    def complete(self, elements: int) -> bool:
        """Whether a batch of so many elements is complete."""
        if self.filtered:
            return elements == self.size
        return bool(self._sizes) and elements == self._sizes[0]

    def begin_next(self) -> None:
        """The current batch is complete."""
        if self._sizes:
            self._sizes.pop(0)


def shuffled(pieces: Iterable[Piece], size: int, seed: int, epoch: int, delivered: int) -> Iterator[Piece]:
    """The elements in a random order, chosen one by one among the first ``size`` that are left.

    Args:
        pieces: the elements.
        size: elements of the buffer.
        seed: of the pipeline.
        epoch: number of the epoch.
        delivered: elements that were delivered in the epoch before.
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


def batched(
    pieces: Iterable[Piece], sizes: BatchSizes, collate: Callable[[list[Any]], Any], *, drop: bool
) -> Iterator[Piece]:
    """The elements in batches.

    Args:
        pieces: the elements.
        sizes: of the batches.
        collate: makes a batch of a list of elements.
        drop: leave out a last batch that is not full.

    Raises:
        PipelineError: the elements do not fit into one batch.
    """
    waiting: list[Piece] = []
    for piece in pieces:
        waiting.append(piece)
        if sizes.complete(len(waiting)):
            sizes.begin_next()
            yield _batch(waiting, collate)
            waiting = []
    if waiting and not drop:
        yield _batch(waiting, collate)


def _batch(pieces: list[Piece], collate: Callable[[list[Any]], Any]) -> Piece:
    indices = [index for piece in pieces for index in piece.indices]
    try:
        value = collate([piece.value for piece in pieces])
    except PipelineError:
        raise
    except Exception as error:
        shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        raise PipelineError(f"items {shown} do not make a batch: {type(error).__name__}: {error}") from error
    return Piece(value, indices, [place for piece in pieces for place in piece.places])


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
        elements: those on single elements.
        shuffle: size of the shuffle's buffer; 0 without one.
        batch: elements of a batch; 0 without batches.
        drop: whether a last batch that is not full is left out.
        collate: makes a batch of a list of elements.
        batches: those on batches.
        count: number of stages.
    """

    elements: tuple[Stage, ...] = ()
    shuffle: int = 0
    batch: int = 0
    drop: bool = False
    collate: Callable[[list[Any]], Any] = stack
    batches: tuple[Stage, ...] = ()
    count: int = 0
