"""Identifiers: objects, origin identities, principals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import lru_cache
from re import Pattern, escape
from re import compile as compile_pattern
from typing import NamedTuple
from urllib.parse import quote

from gateway.model.holders import Holder

_PAYING = "?payer=requester"
_BUCKET_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


class ObjectKey(NamedTuple):
    """One object at one origin (a tuple, because every read makes and hashes one).

    ``origin`` is the name from ``[[origins]]``; ``key`` is the decoded UTF-8 key, never empty, never normalised.
    """

    origin: str
    bucket: str
    key: str

    @property
    def path(self) -> str:
        """``bucket/key``, the form that rules and allow-lists are matched against."""
        return f"{self.bucket}/{self.key}"

    @property
    def raw_path(self) -> str:
        """The percent-encoded path of the object, valid for every S3 store."""
        return f"/{self.bucket}/{quote(self.key, safe='/-_.~')}"


def unpaid(name: str) -> str:
    """The name of the same identity or reader when it does not pay. A payer may read everything that it may."""
    return name.removesuffix(_PAYING)


def rights_in(key: ObjectKey) -> ObjectKey:
    """The key under which changes of rights in a key's bucket are announced and forgotten. No object has an empty key."""
    return key._replace(key="")


@dataclass(frozen=True, slots=True)
class OriginIdentity:
    """The keys with which the gateway signs requests to one origin, for some principals.

    Grants are stored per identity: two principals with the same identity have the same rights at the origin, and the gateway
    checks their differences (allow-list, read-only) on every request. ``access_key_id`` is empty for anonymous requests, which
    are forwarded unsigned. ``pays``: the client accepts the charges of a requester-pays bucket. A store may allow such a read and
    refuse the same read without it, so it is an identity of its own.
    """

    origin: str
    access_key_id: str
    pays: bool = False
    name: str = field(init=False, repr=False, compare=False)
    """Stable text form, used as the key of grants."""

    def __post_init__(self) -> None:
        name = f"{self.origin}/{self.access_key_id}"
        object.__setattr__(self, "name", name + _PAYING if self.pays else name)

    def paying(self) -> OriginIdentity:
        """The same keys, for a reader who accepts the charges."""
        return self if self.pays else OriginIdentity(self.origin, self.access_key_id, pays=True)


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: an access key of the gateway and its tenant; ``access_key_id`` is empty for anonymous callers."""

    access_key_id: str
    tenant: str
    identity: OriginIdentity
    allow: tuple[str, ...] = ()
    read_only: bool = False
    holder: Holder = field(init=False, repr=False, compare=False)
    """The account of the caller."""
    reader: str = field(init=False, repr=False, compare=False)
    """The access key, with a mark if it accepts the charges of its reads; ``reader_of`` finds the principal again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "holder", self.tenant if self.access_key_id else None)
        object.__setattr__(self, "reader", self.access_key_id + _PAYING * self.identity.pays)

    @property
    def anonymous(self) -> bool:
        """Whether the request carried no credentials."""
        return not self.access_key_id

    def paying(self) -> Principal:
        """The same caller, who accepts the charges of requester-pays buckets."""
        return self if self.identity.pays else replace(self, identity=self.identity.paying())

    def may_touch(self, path: str) -> bool:
        """Whether the allow-list covers ``bucket/key``; an empty list covers everything."""
        return not self.allow or any(glob_matches(pattern, path) for pattern in self.allow)

    def may_list(self, start: str) -> bool:
        """Whether the allow-list covers every path ``bucket/key`` that begins with ``start``; empty: all buckets."""
        return not self.allow or any(covers_prefix(pattern, start) for pattern in self.allow)


def reader_of(name: str, find: Callable[[str], Principal | None]) -> Principal | None:
    """The principal that ``Principal.reader`` named; ``None`` for an access key that is no longer known."""
    principal = find(unpaid(name))
    return principal.paying() if principal is not None and name.endswith(_PAYING) else principal


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Pattern[str]:
    first, *rest = pattern.split("**")
    if not rest:
        return compile_pattern(f"(?s:{_piece(first)})\\Z")
    *middle, last = rest
    # The first match of a piece is as good as any later one, because the piece after "**" may begin anywhere behind it. So atomic
    # groups avoid backtracking, and no key can make matching slow.
    text = f"(?>{_piece(first.rstrip('*'), lazy=True)})"
    text += "".join(f"(?>.*?{_piece(part.strip('*'), lazy=True)})" for part in middle)
    return compile_pattern(f"(?s:{text}.*{_piece(last.lstrip('*'))})\\Z")


_WILD = compile_pattern(r"\*+|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[")
"""The parts of a glob: stars, a question mark, a class, letters, a bracket that does not begin a class."""


def _piece(glob: str, *, lazy: bool = False) -> str:
    """The regular expression of a glob without "**"; ``lazy``: it matches as little as possible.

    As in shells and .gitignore, and unlike fnmatch, neither wildcards nor classes, even negated ones, match a slash.
    """
    return "".join(_expression(part, lazy) for part in _WILD.findall(glob))


def _expression(part: str, lazy: bool) -> str:
    if part[0] == "*":
        return "[^/]*?" if lazy else "[^/]*"
    if part == "?":
        return "[^/]"
    if part[0] == "[" and part[-1] == "]":
        return "(?!/)" + translate(part).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z")
    return escape(part)


def glob_matches(pattern: str, path: str) -> bool:
    """Match ``bucket/key`` against a rule's glob: ``*`` stays inside one path segment, ``**`` crosses them."""
    return _compiled(pattern).match(path) is not None


def covers_prefix(pattern: str, prefix: str) -> bool:
    """Whether a glob covers every path ``bucket/key`` that begins with ``prefix``."""
    stem = pattern.removesuffix("**")
    return stem != pattern and not any(special in stem for special in "*?[") and prefix.startswith(stem)


def is_bucket_name(text: str) -> bool:
    """Whether a text can be a bucket name, and so is not a path.

    The origin applies the stricter rules; old buckets have longer names, with capitals and underscores.
    """
    return 1 <= len(text) <= 255 and _is_bucket_name(text)


@lru_cache(maxsize=256)
def _is_bucket_name(text: str) -> bool:
    raw = text.encode("ascii", "replace")
    return _BUCKET_BYTES.issuperset(raw) and raw[0] not in b".-" and b".." not in raw
