"""Sets of whole numbers that fill from below, compact in memory and in JSON.

The delivered part of an epoch is everything up to some point, plus a ragged edge of substitutes that were taken early. So a set
consists of ``upto`` (every smaller number is in it) and one bit for each number from there to the largest.
"""

import base64
import binascii
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from larder.base.errors import StateError


class NumberSet:
    """An immutable set of whole numbers.

    Args:
        upto: every number from 0 to below this is in the set.
        bits: whether ``upto``, ``upto + 1``, ... are in the set.
    """

    __slots__ = ("_missing", "bits", "upto")

    def __init__(self, upto: int = 0, bits: NDArray[np.bool_] | None = None) -> None:
        bits = np.zeros(0, np.bool_) if bits is None else bits
        kept = len(bits) - int(np.argmax(bits[::-1])) if bits.any() else 0
        bits = bits[:kept]
        full = kept if bits.all() else int(np.argmin(bits))
        self.upto = upto + full
        self.bits = bits[full:].copy()
        self.bits.flags.writeable = False
        self._missing: NDArray[np.int64] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberSet) and self.upto == other.upto and np.array_equal(self.bits, other.bits)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"NumberSet({len(self)} numbers, complete up to {self.upto})"

    def __reduce__(self) -> tuple[object, ...]:
        return NumberSet, (self.upto, self.bits)

    def __len__(self) -> int:
        return self.upto + int(np.count_nonzero(self.bits))

    @property
    def stop(self) -> int:
        """One more than the largest number; 0 for the empty set."""
        return self.upto + len(self.bits)

    def numbers(self) -> NDArray[np.int64]:
        """All numbers in the set, ascending."""
        ragged = np.flatnonzero(self.bits).astype(np.int64) + self.upto
        return np.concatenate([np.arange(self.upto, dtype=np.int64), ragged])

    def contains(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of ``numbers`` is in the set."""
        contained = np.asarray(numbers < self.upto, np.bool_)
        inside = (numbers >= self.upto) & (numbers < self.stop)
        contained[inside] = self.bits[numbers[inside] - self.upto]
        return contained

    def nth_missing(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers missing from the set, by ordinal: 0 gives the smallest missing number, 1 the next."""
        if self._missing is None:
            self._missing = np.flatnonzero(~self.bits).astype(np.int64) + self.upto
        missing = self._missing
        if not len(missing):
            return ordinals + self.upto
        below = missing[np.minimum(ordinals, len(missing) - 1)]
        return np.where(ordinals < len(missing), below, ordinals + (self.stop - len(missing)))

    def with_numbers(self, numbers: NDArray[np.int64]) -> "NumberSet":
        """This set and ``numbers``."""
        if not len(numbers):
            return self
        bits = np.zeros(max(self.stop, int(numbers.max()) + 1) - self.upto, np.bool_)
        bits[: len(self.bits)] = self.bits
        bits[numbers[numbers >= self.upto] - self.upto] = True
        return NumberSet(self.upto, bits)

    def union(self, other: "NumberSet") -> "NumberSet":
        """The numbers that are in either set."""
        low, high = (self, other) if self.upto <= other.upto else (other, self)
        bits = np.zeros(max(low.stop, high.stop) - low.upto, np.bool_)
        bits[: len(low.bits)] = low.bits
        bits[: high.upto - low.upto] = True
        bits[high.upto - low.upto : high.stop - low.upto] |= high.bits
        return NumberSet(low.upto, bits)

    def to_json(self) -> dict[str, object]:
        """``{"upto": a, "bits": text}``: base64 of zlib of the bits from ``a`` on, least significant bit first; "" for none."""
        if not len(self.bits):
            return {"upto": self.upto, "bits": ""}
        packed = zlib.compress(np.packbits(self.bits, bitorder="little").tobytes(), 9)
        return {"upto": self.upto, "bits": base64.b64encode(packed).decode("ascii")}

    @classmethod
    def from_json(cls, value: object, limit: int, field: str) -> "NumberSet":
        """The set that ``to_json`` described; all its numbers must be below ``limit``.

        Raises:
            StateError: invalid; the message names ``field``.
        """
        if not isinstance(value, Mapping) or set(value) != {"upto", "bits"}:
            raise StateError(f'state field "{field}" must be an object with "upto" and "bits"')
        upto, text = value["upto"], value["bits"]
        if not isinstance(upto, int) or isinstance(upto, bool) or not 0 <= upto <= limit:
            raise StateError(f'state field "{field}.upto" must be a whole number from 0 to {limit}, not {upto!r}')
        if not isinstance(text, str):
            raise StateError(f'state field "{field}.bits" must be a string')
        bits = _decode(text, limit - upto, field)
        if bits[limit - upto :].any():
            raise StateError(f'state field "{field}.bits" has numbers of {limit} and more, of which there are none')
        return cls(upto, bits[: limit - upto])


def _decode(text: str, most: int, field: str) -> NDArray[np.bool_]:
    """The bits in ``text``; decompresses no more than ``most`` bits need."""
    if not text:
        return np.zeros(0, np.bool_)
    room = -(-most // 8)
    try:
        inflater = zlib.decompressobj()
        packed = inflater.decompress(base64.b64decode(text, validate=True), room + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise StateError(f'state field "{field}.bits" is not base64 of zlib data: {error}') from error
    if len(packed) > room:
        raise StateError(f'state field "{field}.bits" is longer than the {most} numbers that it can be about')
    if not inflater.eof or inflater.unused_data:
        raise StateError(f'state field "{field}.bits" is cut off, or has something after its end')
    return np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").astype(np.bool_)


class GrowingSet:
    """A ``NumberSet`` that grows, cheaply for many small additions."""

    def __init__(self, start: NumberSet) -> None:
        self._known = start
        self._recent: list[NDArray[np.int64]] = []
        self._count = 0

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Add ``numbers``."""
        self._recent.append(numbers)
        self._count += len(numbers)
        if self._count > 1 << 16:
            self.now()

    def now(self) -> NumberSet:
        """The current set."""
        if self._recent:
            self._known = self._known.with_numbers(np.concatenate(self._recent))
            self._recent, self._count = [], 0
        return self._known
