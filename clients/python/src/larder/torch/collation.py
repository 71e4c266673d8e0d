"""Collation of dataclasses, for which PyTorch's ``default_collate`` raises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch.utils.data._utils.collate import collate as collate_by_type
from torch.utils.data._utils.collate import default_collate_fn_map


@runtime_checkable
class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def collate(samples: list[Any]) -> Any:
    """A batch of samples, like that of ``torch.utils.data.default_collate``; dataclasses are batched by member, too.

    Raises:
        TypeError: PyTorch cannot collate a part of the samples.
        RuntimeError: tensors have different shapes, or lists different lengths.
    """
    return collate_by_type(samples, collate_fn_map=_BY_TYPE)


def _dataclasses(samples: list[Any], *, collate_fn_map: Any) -> Any:
    # Not by its constructor: __post_init__ may check facts of a single sample.
    batch = copy.copy(samples[0])
    for attribute in fields(batch):
        values = [getattr(sample, attribute.name) for sample in samples]
        object.__setattr__(batch, attribute.name, collate_by_type(values, collate_fn_map=collate_fn_map))
    return batch


_BY_TYPE: dict[Any, Callable[..., Any]] = {**default_collate_fn_map, _Dataclass: _dataclasses}
