"""Which items of a rotated dataset have lost their place, so that at most two chunks of it take space.

An item's bytes may be another dataset's as well, or of another chunk of the same one, when a dataset has an item twice. They stay
for as long as any of these has a place for them, and are charged to the pool of one that has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from gateway.policies.space.chunk_cut import ChunkCut
from gateway.store.datasets.content import Content

_BATCH = 512

Keeps = Callable[[Content, int], bool]


def outside(content: Content, cut: ChunkCut, held: Collection[int]) -> NDArray[np.uint32]:
    """The items that are in this node's cache and in no held chunk."""
    resident = np.flatnonzero(content.states.believed()).astype(np.uint32)
    return resident[~np.isin(cut.chunks_of(resident), list(held))]


def placeless(
    content: Content, indices: NDArray[np.uint32], all_contents: Iterable[Content], keeps: Keeps
) -> Iterator[tuple[list[bytes], list[tuple[bytes, str]]]]:
    """The digests of items, in batches: those without a place anywhere, and those with one, by the dataset that has it.

    Args:
        content: of the items.
        indices: of items without a place in ``content``.
        all_contents: what is open here.
        keeps: whether the plan has a place for an item of a dataset.
    """
    contents = list(all_contents)
    if not any(each is content for each in contents):
        contents.append(content)
    for start in range(0, len(indices), _BATCH):
        digests = {content.digest(index) for index in indices[start : start + _BATCH].tolist()}
        places = {digest: _place(digest, contents, keeps) for digest in digests}
        placed = [(digest, dataset) for digest, dataset in places.items() if dataset]
        yield [digest for digest, dataset in places.items() if not dataset], placed


def _place(digest: bytes, contents: Iterable[Content], keeps: Keeps) -> str:
    """The dataset that has a place for an item, empty for none."""
    held = (content.id for content in contents for index in content.indices_of(digest) if keeps(content, int(index)))
    return next(held, "")
