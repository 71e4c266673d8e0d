"""Kinds of items: whole objects, members or samples of TARs, or ranges that a user's function returns."""

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
TAR_SAMPLES = "tar-samples"


class IndexFailed(LarderError):
    """A user's function was not found, or returned an invalid range."""


@dataclass(frozen=True)
class Items:
    """The kind of items of a dataset.

    Args:
        name: identifies the kind, so that digests of different kinds are not mixed.
        index: the user's function, if any.
    """

    name: str
    index: Index | None = None

    @classmethod
    def of(cls, what: str | Index) -> Items:
        """The kind for ``"objects"``, ``"tar-members"``, ``"tar-samples"``, ``"module:function"``, or a function.

        Raises:
            IndexFailed: the function was not found.
        """
        if not isinstance(what, str):
            return cls(f"index {what.__module__}:{what.__qualname__}", what)
        if what in (OBJECTS, TAR_MEMBERS, TAR_SAMPLES):
            return cls(what)
        module, _, function = what.partition(":")
        try:
            index = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise IndexFailed(f'no function {what!r} (it is written "module:function"): {error}') from error
        return cls(f"index {module}:{function}", index)
