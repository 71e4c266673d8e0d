"""What the items of a dataset are: whole objects, the members of TARs, or what a function of the user's says."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from larder.errors import LarderError

ReadRange = Callable[[int, int], bytes]
"""``read(offset, length)``: bytes of the object in question."""
Index = Callable[[str, str, int, ReadRange], Iterable[tuple[int, int]]]
"""``items(bucket, key, size, read)``: offset and length of each item in one object, in any order."""

OBJECTS = "objects"
TAR_MEMBERS = "tar-members"


class IndexFailed(LarderError):
    """A user's function cannot be found, or gave something that is no place in the object."""


@dataclass(frozen=True)
class Items:
    """The kind of items of a dataset.

    Args:
        name: that distinguishes one kind from another: digests of one are not taken for those of another.
        index: the user's function, ``None`` for the kinds that have none.
    """

    name: str
    index: Index | None = None

    @classmethod
    def of(cls, what: str | Index) -> Items:
        """The kind for ``"objects"``, ``"tar-members"``, ``"module:function"``, or a function.

        Raises:
            IndexFailed: there is no such function.
        """
        if not isinstance(what, str):
            return cls(f"index {what.__module__}:{what.__qualname__}", what)
        if what in (OBJECTS, TAR_MEMBERS):
            return cls(what)
        module, _, function = what.partition(":")
        try:
            index = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise IndexFailed(f'no function {what!r} (it is written "module:function"): {error}') from error
        return cls(f"index {module}:{function}", index)
