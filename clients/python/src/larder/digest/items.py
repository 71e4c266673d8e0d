"""Kinds of items: whole objects, members or samples of TARs, or ranges that a user's function returns. Whole objects may be the
members of samples."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from larder.base.errors import LarderError
from larder.base.tar import split_name
from larder.digest.parquet import row_groups
from larder.digest.ranges import ReadRange

Index = Callable[[str, str, int, ReadRange], Iterable[tuple[int, int]]]
"""``items(bucket, key, size, read)``: offset and length of each item in one object, in any order."""

OBJECTS = "objects"
TAR_MEMBERS = "tar-members"
TAR_SAMPLES = "tar-samples"
ROW_GROUPS = "row-groups"
_PARTS = ("0", "1")
"""Members of a row group: its bytes, and the footer of its file."""
SAMPLES = "samples:"
"""Prefix of the kind whose items are the members of samples; the names follow, separated by commas."""
MAX_MEMBERS = 64
"""The most members of a sample that gateways accept."""
_LONGEST_MEMBER = 80
"""The most characters of a member's name, so that a TAR header has room for it."""


class IndexFailed(LarderError):
    """A user's function was not found, or returned an invalid range."""


@dataclass(frozen=True)
class Items:
    """The kind of items of a dataset.

    Args:
        name: identifies the kind, so that digests of different kinds are not mixed.
        index: the user's function, if any.
        members: names of the members of a sample; empty for other kinds.
        shared: the members are parts of one object, and the last part of each object belongs to all of its samples.
    """

    name: str
    index: Index | None = None
    members: tuple[str, ...] = ()
    shared: bool = False

    def include(self, key: str) -> bool:
        """Whether an object is of this kind; for samples, whether it is a member of one."""
        return self.shared or not self.members or split_name(key)[1] in self.members

    @classmethod
    def of(cls, what: str | Index) -> Items:
        """The kind for ``"objects"``, ``"samples:jpg,cls"``, ``"tar-members"``, ``"tar-samples"``, ``"row-groups"``,
        ``"module:function"``, or a function.

        Raises:
            ValueError: the names of members are not those of a sample.
            TypeError: an index is not a function with a name.
            IndexFailed: the function was not found.
        """
        if not isinstance(what, str):
            name = getattr(what, "__qualname__", None)
            if name is None:
                raise TypeError(
                    f"items must be a kind or a function, whose name tells its digests from others; {what!r} has no name: "
                    "define a function that calls it"
                )
            return cls(f"index {what.__module__}:{name}", what)
        if what in (OBJECTS, TAR_MEMBERS, TAR_SAMPLES):
            return cls(what)
        if what == ROW_GROUPS:
            return cls(what, row_groups, _PARTS, shared=True)
        if what.startswith(SAMPLES):
            return cls(what, members=_members(what.removeprefix(SAMPLES)))
        module, _, function = what.partition(":")
        try:
            index = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise IndexFailed(f'no function {what!r} (it is written "module:function"): {error}') from error
        return cls(f"index {module}:{function}", index)


def _members(names: str) -> tuple[str, ...]:
    members = tuple(names.split(","))
    if (
        not all(members)
        or len(set(names.lower().split(","))) < len(members)
        or max(map(len, members)) > _LONGEST_MEMBER
        or "/" in names
    ):
        raise ValueError(
            "the members of a sample are named by what follows the first dot, such as jpg,cls, and differ by more than upper "
            f"and lower case; not {names!r}"
        )
    if not 1 < len(members) <= MAX_MEMBERS:
        raise ValueError(f"a sample has 2 to {MAX_MEMBERS} members, not {len(members)}")
    return members
