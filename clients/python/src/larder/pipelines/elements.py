"""Elements as bytes: a self-describing format that runs no code when it is read.

An element is a number, string, ``bytes``, numpy array, torch tensor, ``None``, or a dict, list or tuple of these. Pickle could
store more types, but would run code from anyone who can write to the cache. Arrow and safetensors store fewer types (no nesting,
or no strings) and are further dependencies; numpy is one already (docs/decisions/0022).

Layout, little-endian: ``LRE1``, the length of the tree (u32), the tree, then the data of arrays, tensors and ``bytes`` in the
order of the tree, each at the next multiple of 64 from the beginning. The tree is one tag byte per value, followed by the tag's
data. A reader trusts nothing: it compares every count, length and shape with the available bytes, and bounds the number of values
and levels. So the result takes little more memory than its bytes and 100 MB.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from larder.base.errors import ElementDamaged, ElementUnstorable

MAGIC = b"LRE1"
ALIGNMENT = 64
"""Bytes: the data of each array begins at a multiple of this, a cache line."""
DEEPEST = 64
"""Levels of nesting; deeper ones are refused by writer and reader."""
MOST_VALUES = 1_000_000
"""Values of an element: numbers, texts, arrays, and the containers around them. One takes a byte and becomes an object."""
_MOST_DIMENSIONS = 32
_DTYPE = re.compile(r"[|<>][biufcSU]\d{1,9}|[<>][mM]8(\[\d{0,9}[A-Za-zμ]{1,2}\])?")
_HEAD = struct.Struct("<4sI")

_NONE, _FALSE, _TRUE, _INT, _FLOAT, _COMPLEX, _TEXT, _BYTES, _LIST, _TUPLE, _DICT, _ARRAY, _SCALAR, _TENSOR = range(14)
_DROPPED = 14

_TENSOR_TYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
)  # fmt: skip
"""Types of tensors by their number in the format; new ones are added at the end."""


class Dropped:
    """The value of an element that a filter dropped. `DROPPED` is the only instance."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"


DROPPED = Dropped()


class Encoded:
    """An element ready to be written: its size is known, and none of its data has been copied yet.

    Args:
        value: the element.

    Raises:
        ElementUnstorable: the value, or a part of it, has a type that elements cannot have.
    """

    def __init__(self, value: Any) -> None:
        self._tree = bytearray()
        self._data: list[memoryview] = []
        self._values = 0
        self._encode(value, "the element", 0)
        self.size = _HEAD.size + len(self._tree)
        for part in self._data:
            self.size = _aligned(self.size) + part.nbytes

    def buffers(self) -> list[bytes | bytearray | memoryview]:
        """The element in pieces, to be written in this order."""
        pieces: list[bytes | bytearray | memoryview] = [_HEAD.pack(MAGIC, len(self._tree)), self._tree]
        size = _HEAD.size + len(self._tree)
        for part in self._data:
            start = _aligned(size)
            pieces += [bytes(start - size), part]
            size = start + part.nbytes
        return pieces

    def to_bytes(self) -> bytes:
        """The element as new bytes."""
        return b"".join(self.buffers())

    def _encode(self, value: Any, where: str, depth: int) -> None:
        if depth > DEEPEST:
            raise ElementUnstorable(f"{where} is nested deeper than {DEEPEST} levels")
        self._values += 1
        if self._values > MOST_VALUES:
            raise ElementUnstorable(
                f"{where} is one value too many, of {MOST_VALUES}; make arrays of them (numpy.asarray)"
            )
        kind = type(value)
        if kind in _SIMPLE:
            self._tree += _SIMPLE[kind](value)
        elif kind is dict:
            self._tree += struct.pack("<BI", _DICT, len(value))
            for key, member in value.items():
                if type(key) not in _KEYS:
                    raise ElementUnstorable(f"{where} has the key {key!r}; keys are strings, numbers, bool or None")
                self._tree += _SIMPLE[type(key)](key)
                self._encode(member, f"{where}[{key!r}]", depth + 1)
        elif kind is list or kind is tuple:
            self._tree += struct.pack("<BI", _LIST if kind is list else _TUPLE, len(value))
            for number, member in enumerate(value):
                self._encode(member, f"{where}[{number}]", depth + 1)
        elif kind in (bytes, bytearray, memoryview):
            data = memoryview(value).cast("B") if kind is not memoryview else memoryview(bytes(value))
            self._tree += struct.pack("<BQ", _BYTES, data.nbytes)
            self._data.append(data)
        elif kind is np.ndarray:
            self._array(_ARRAY, value, where)
        elif isinstance(value, np.generic):
            self._array(_SCALAR, np.asarray(value), where)
        elif _is_tensor(value):
            self._tensor(value, where)
        else:
            raise ElementUnstorable(f"{where} is a {kind.__module__}.{kind.__qualname__}; {_hint(value)}")

    def _array(self, tag: int, array: NDArray[Any], where: str) -> None:
        text = array.dtype.str
        if not _DTYPE.fullmatch(text) or array.dtype.hasobject or array.ndim > _MOST_DIMENSIONS:
            raise ElementUnstorable(f"{where} is an array of {array.dtype}; arrays are of numbers, bool, dates or text")
        name = text.encode()
        self._tree += struct.pack(f"<BB{len(name)}sB", tag, len(name), name, array.ndim)
        self._tree += struct.pack(f"<{array.ndim}Q", *array.shape)
        self._data.append(_bytes_of(array))

    def _tensor(self, tensor: Any, where: str) -> None:
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.device.type != "cpu" or str(tensor.layout) != "torch.strided" or name not in _TENSOR_TYPES:
            raise ElementUnstorable(
                f"{where} is a {tensor.layout} tensor of {name} on {tensor.device}; tensors are dense, and on the CPU"
            )
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        self._tree += struct.pack("<BBB", _TENSOR, _TENSOR_TYPES.index(name), plain.ndim)
        self._tree += struct.pack(f"<{plain.ndim}Q", *plain.shape)
        self._data.append(_bytes_of(plain.reshape(-1).view(_torch().uint8).numpy()))


def encode(value: Any) -> bytes:
    """The element as bytes. Raises what `Encoded` raises."""
    return Encoded(value).to_bytes()


def decode(data: bytes | bytearray | memoryview, *, copy: bool = True) -> Any:
    """The element that ``data`` contains; runs no code of the element.

    Args:
        data: the output of `Encoded`.
        copy: arrays, tensors and ``bytes`` own their memory. Without it, arrays and tensors are views of ``data``.

    Raises:
        ElementDamaged: these bytes are not an element.
    """
    return _Reader(memoryview(data).cast("B"), copy=copy).element()


class _Reader:
    """Reads one element. ``_at`` is the place in the tree, ``_next`` where the next data may begin."""

    def __init__(self, data: memoryview, *, copy: bool) -> None:
        self._data = data
        self._copy = copy
        if data.nbytes < _HEAD.size:
            raise ElementDamaged(f"an element has at least {_HEAD.size} bytes, not {data.nbytes}")
        magic, length = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ElementDamaged(f"these bytes begin with {bytes(magic)!r}, an element begins with {MAGIC!r}")
        self._at, self._values = _HEAD.size, 0
        self._end = self._next = _HEAD.size + length
        if self._end > data.nbytes:
            raise ElementDamaged(f"a tree of {length} bytes does not fit {data.nbytes}")

    def element(self) -> Any:
        try:
            value = self._value(0)
        except (struct.error, UnicodeDecodeError, OverflowError, TypeError, ValueError, RuntimeError) as error:
            raise ElementDamaged(f"the element is damaged at byte {self._at}: {error}") from error
        if self._at != self._end or self._next != self._data.nbytes:
            raise ElementDamaged(f"{self._data.nbytes} bytes have more than one element of {self._next}")
        return value

    def _unpack(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize(form)
        if self._at + size > self._end:
            raise ElementDamaged(f"the element is cut off at byte {self._at}")
        values = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return values

    def _raw(self, size: int) -> bytes:
        return bytes(self._unpack(f"<{size}s")[0]) if size <= self._end - self._at else self._cut_off()

    def _cut_off(self) -> bytes:
        raise ElementDamaged(f"the element is cut off at byte {self._at}")

    def _value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise ElementDamaged(f"the element is nested deeper than {DEEPEST} levels")
        self._values += 1
        if self._values > MOST_VALUES:
            raise ElementDamaged(f"the element has more than {MOST_VALUES} values")
        (tag,) = self._unpack("<B")
        if tag in (_LIST, _TUPLE, _DICT):
            (count,) = self._unpack("<I")
            if count > self._end - self._at:  # each value has at least its tag
                self._cut_off()
            if tag == _DICT:
                return {self._key(): self._value(depth + 1) for _ in range(count)}
            values = [self._value(depth + 1) for _ in range(count)]
            return values if tag == _LIST else tuple(values)
        return self._leaf(tag)

    def _key(self) -> Any:
        (tag,) = self._unpack("<B")
        if tag > _TEXT:
            raise ElementDamaged(f"tag {tag} is no key, at byte {self._at}")
        return self._leaf(tag)

    def _leaf(self, tag: int) -> Any:
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == _INT:
            return int.from_bytes(self._raw(self._unpack("<B")[0]), "little", signed=True)
        if tag == _FLOAT:
            return self._unpack("<d")[0]
        if tag == _COMPLEX:
            return complex(*self._unpack("<dd"))
        if tag == _TEXT:
            return self._raw(self._unpack("<I")[0]).decode("utf-8", "surrogatepass")
        if tag == _BYTES:
            return bytes(self._region(self._unpack("<Q")[0]))
        if tag in (_ARRAY, _SCALAR):
            return self._array(tag)
        if tag == _TENSOR:
            return self._tensor()
        raise ElementDamaged(f"unknown tag {tag} at byte {self._at - 1}; a later version may have written it")

    def _array(self, tag: int) -> Any:
        name = self._raw(self._unpack("<B")[0]).decode("ascii")
        if not _DTYPE.fullmatch(name):
            raise ElementDamaged(f"{name!r} is not an array type")
        dtype = np.dtype(name)
        shape, count = self._shape()
        region = self._region(count * dtype.itemsize)
        if tag == _SCALAR and shape:
            raise ElementDamaged(f"a single number has the shape {shape}")
        array = np.empty(shape, dtype) if not region.nbytes else np.frombuffer(region, dtype).reshape(shape)
        if tag == _SCALAR:
            return array[()]
        return array.copy() if self._copy else array

    def _tensor(self) -> Any:
        (number,) = self._unpack("<B")
        shape, count = self._shape()
        torch = _torch()
        name = _TENSOR_TYPES[number] if number < len(_TENSOR_TYPES) else ""
        dtype = getattr(torch, name, None)
        if dtype is None:
            raise ElementDamaged(f"tensor type {number} is unknown to this version of Larder or of PyTorch")
        region = self._region(count * dtype.itemsize)
        if not region.nbytes:
            return torch.empty(shape, dtype=dtype)
        raw = np.frombuffer(region, np.uint8)
        # PyTorch warns about memory that it must not write to.
        raw = raw.copy() if self._copy or region.readonly else raw
        return torch.from_numpy(raw).view(dtype).reshape(shape)

    def _shape(self) -> tuple[tuple[int, ...], int]:
        (dimensions,) = self._unpack("<B")
        if dimensions > _MOST_DIMENSIONS:
            raise ElementDamaged(f"an array has {dimensions} dimensions, of at most {_MOST_DIMENSIONS}")
        shape = self._unpack(f"<{dimensions}Q")
        if math.prod(size for size in shape if size) > sys.maxsize:
            raise ElementDamaged(f"an array of the shape {shape} fits no memory")
        return shape, math.prod(shape)

    def _region(self, size: int) -> memoryview:
        start = _aligned(self._next)
        if start + size > self._data.nbytes:
            raise ElementDamaged(f"{size} bytes of data at {start} are beyond the end, {self._data.nbytes}")
        if any(self._data[self._next : start]):
            raise ElementDamaged(f"the bytes from {self._next} to {start} are not zero")
        self._next = start + size
        return self._data[start : self._next]


_CONSTANTS: dict[int, Any] = {_NONE: None, _FALSE: False, _TRUE: True, _DROPPED: DROPPED}


def _int(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    if size > 0xFF:
        raise ElementUnstorable(f"a whole number of {size} bytes is too large for an element")
    return struct.pack("<BB", _INT, size) + value.to_bytes(size, "little", signed=True)


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<BI", _TEXT, len(data)) + data


_SIMPLE: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: bytes([_NONE]),
    bool: lambda value: bytes([_TRUE if value else _FALSE]),
    int: _int,
    float: lambda value: struct.pack("<Bd", _FLOAT, value),
    complex: lambda value: struct.pack("<Bdd", _COMPLEX, value.real, value.imag),
    str: _text,
    Dropped: lambda value: bytes([_DROPPED]),
}
_KEYS = frozenset(_SIMPLE) - {Dropped}


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ElementDamaged("the element has a tensor, and PyTorch is not installed here") from error
    return torch


def _hint(value: Any) -> str:
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return "make an array of it (numpy.asarray)"
    if isinstance(value, tuple | list | dict | str | int | float):
        return "make a plain tuple, list, dict, string or number of it"
    return "elements are numbers, strings, bytes, arrays, tensors, and dicts, lists and tuples of these"
