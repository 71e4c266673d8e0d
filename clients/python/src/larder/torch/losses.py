"""The loss of each sample of a mini-batch, from a loss module that gives one number.

Importance needs the loss of single samples. With ``reduction="none"``, torch's modules give a loss for each element: each pixel,
each token. Here the elements of a sample become one number in the module's own way: the mean of the elements that it does not
ignore, or the sum if it sums.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_REDUCTIONS = ("none", "mean", "sum", "batchmean")


def per_sample(loss: nn.Module) -> Callable[..., torch.Tensor]:
    """A function with the module's arguments that returns one loss per sample, with gradients.

    ::

        losses_of = per_sample(torch.nn.CrossEntropyLoss(ignore_index=255))
        losses = losses_of(model(images), masks)  # (batch,), from (batch, classes, height, width) and (batch, height, width)

    The first dimension of inputs and targets is the batch. ``losses.mean()`` equals the module's result, except for modules that
    ignore elements or weight classes: these divide by the mini-batch's sum of weights, which would make a sample's loss depend on
    other samples. The losses include the weights of classes; elements with ``ignore_index`` are left out of the mean, and a
    sample with only such elements has the loss 0.

    Args:
        loss: a module with a ``reduction``, of torch or like torch's. Later changes of its weights count.

    Raises:
        TypeError: not a module, or one without ``reduction``.
        ValueError: its ``reduction`` is unknown. When called: the module's result is not a loss for each sample.
    """
    if not isinstance(loss, nn.Module):
        raise TypeError(f"expected a loss module such as torch.nn.CrossEntropyLoss(), not {type(loss).__name__}")
    name = type(loss).__name__
    reduction = getattr(loss, "reduction", None)
    if reduction is None:
        raise TypeError(
            f"{name} has no reduction, so its losses of single samples are not known; compute them yourself"
        )
    if reduction not in _REDUCTIONS:
        raise ValueError(f"the reduction of {name} is {reduction!r}, not one of {', '.join(_REDUCTIONS)}")
    elementwise = copy.copy(loss)
    elementwise.reduction = "none"  # type: ignore[assignment]
    ignored = getattr(loss, "ignore_index", None)
    summed = reduction in ("sum", "batchmean")

    def losses_of(outputs: torch.Tensor, *targets: Any, **more: Any) -> torch.Tensor:
        elements: torch.Tensor = elementwise(outputs, *targets, **more)
        _require_batch(name, outputs, elements)
        flat = elements.flatten(1) if elements.dim() > 1 else elements.unsqueeze(1)
        if summed:
            return flat.sum(1)
        counted = _counted(targets, elements, ignored)
        return flat.mean(1) if counted is None else flat.sum(1) / counted

    return losses_of


def _require_batch(name: str, outputs: torch.Tensor, elements: object) -> None:
    if not isinstance(elements, torch.Tensor) or not elements.dim():
        raise ValueError(f"{name} gives one number even with reduction='none': it has no losses of single samples")
    if not outputs.dim() or len(elements) != len(outputs):
        raise ValueError(
            f"{name} gives losses of shape {tuple(elements.shape)} for outputs of shape {tuple(outputs.shape)}, "
            "whose first dimension is not the batch"
        )


def _counted(targets: tuple[Any, ...], elements: torch.Tensor, ignored: int | None) -> torch.Tensor | None:
    """For each sample, the number of elements in its mean; ``None`` if none is ignored."""
    if ignored is None or not targets or targets[0].shape != elements.shape or elements.dim() == 1:
        return None  # class probabilities as targets cannot be ignored
    target: torch.Tensor = targets[0]
    return (target != ignored).flatten(1).sum(1).clamp(min=1)
