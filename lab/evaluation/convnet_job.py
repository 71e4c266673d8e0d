"""A training process of ``lab.evaluation.convnet``: a small convolutional network learns drawn pictures.

The first question is the `Setting`, each further one an `Order`; an order is answered by a line for each epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lab.evaluation.gpu_job import Bucket, Objects
from lab.evaluation.shapes import CLASSES, Shapes, label, pixels
from lab.evaluation.trainers import questions, reply
from larder import Access, Credentials, Job
from larder.torch import CachedDataset, CachedMapDataset, ImportanceSampler, Item, per_sample

AHEAD = 2
"""Mini-batches that a worker of the ``DataLoader`` has ready."""
_RATE, _DECAY = 3e-3, 1e-2
_AT_ONCE = 500
"""Pictures of a step of the validation."""


@dataclass(frozen=True)
class Setting:
    """The shared settings of all orders.

    Args:
        name: of the dataset.
        items: pictures.
        side: pixels of a side.
        batch: pictures of a mini-batch.
        epochs: number of epochs.
        width: channels of the first layer.
        held_out: pictures of the validation.
        workers: processes of the ``DataLoader``.
    """

    name: str
    items: int
    side: int
    batch: int
    epochs: int
    width: int
    held_out: int
    workers: int

    @property
    def data(self) -> Shapes:
        """The dataset."""
        return Shapes(self.name, self.items, 3 * self.side**2)


@dataclass(frozen=True)
class Order:
    """One training.

    Args:
        source: ``s3``, object by object; ``loader``; or ``importance``, the loader with its sampler.
        endpoint: of the store or gateway.
        keys: access key and secret for it.
        bucket: with the objects, for ``s3``.
        seed: of the network and the order.
        job: name to register as; empty for none.
        options: of the `CachedDataset`, or of the `ImportanceSampler`.
    """

    source: str
    endpoint: str
    keys: tuple[str, str]
    bucket: str
    seed: int
    job: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Epoch:
    """An epoch: its seconds without the validation, the accuracy after it, and the share of the items that it had."""

    seconds: float
    accuracy: float
    seen: float


class Sample:
    """A picture as a tensor, and its class."""

    def __init__(self, side: int) -> None:
        self._side = side

    def __call__(self, item: Item) -> tuple[Tensor, int]:
        """The sample of an item of the loader."""
        return self.of(item.data, item.index)

    def of(self, data: bytes | memoryview, number: int) -> tuple[Tensor, int]:
        """The sample of an item's bytes."""
        return torch.from_numpy(np.ascontiguousarray(pixels(data, self._side).transpose(2, 0, 1))), label(number)


def network(width: int) -> nn.Sequential:
    """Three convolutions."""
    layers: list[nn.Module] = []
    before = 3
    for place in range(3):
        channels = width << place
        convolution = nn.Conv2d(before, channels, 3, padding=1, stride=1 if layers else 2, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * before, CLASSES))


class Learner:
    """A network in training, on the GPU if there is one."""

    def __init__(self, setting: Setting, seed: int, held_out: tuple[Tensor, Tensor]) -> None:
        torch.manual_seed(seed)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._network = network(setting.width).to(self._device)
        self._optimizer = torch.optim.AdamW(self._network.parameters(), _RATE, weight_decay=_DECAY)
        steps = setting.epochs * -(-setting.items // setting.batch)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, steps)
        self._losses_of = per_sample(nn.CrossEntropyLoss())
        self._held_out = held_out

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train on a mini-batch; returns the losses of its samples."""
        losses = self._losses_of(self._network(self._floats(images)), labels.to(self._device))
        self._optimizer.zero_grad()
        torch.autograd.backward(losses.mean())
        self._optimizer.step()
        self._schedule.step()
        return losses.detach()

    def wait(self) -> None:
        """Wait until the GPU has finished."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def accuracy(self) -> float:
        """The share of the held-out pictures that the network recognises."""
        images, labels = self._held_out
        self._network.eval()
        with torch.inference_mode():
            shown = torch.cat(
                [self._network(self._floats(some)).argmax(1).cpu() for some in torch.split(images, _AT_ONCE)]
            )
        self._network.train()
        return float((shown == labels).double().mean())

    def _floats(self, images: Tensor) -> Tensor:
        return images.to(self._device).float() / 64 - 2


def held_out(setting: Setting) -> tuple[Tensor, Tensor]:
    """Pictures that no training has, and their classes."""
    drawn = Shapes("held-out", setting.held_out, setting.data.length)
    sample = Sample(setting.side)
    images, labels = zip(*(sample.of(data, number) for number, data in enumerate(drawn.contents())), strict=True)
    return torch.stack(images), torch.tensor(labels)


def train(setting: Setting, order: Order, learner: Learner) -> Iterator[Epoch]:
    """Carry out an order."""
    with ExitStack() as stack:
        loader, sampler = _loader(setting, order, stack)
        for _ in range(setting.epochs):
            seen: set[int] = set()
            began = time.monotonic()
            for batch in loader:
                if sampler is None:
                    learner.step(*batch)
                    continue
                ids, (images, labels) = batch
                sampler.update(ids, learner.step(images, labels))
                seen.update(ids.tolist())
            learner.wait()
            seconds = time.monotonic() - began
            yield Epoch(seconds, learner.accuracy(), len(seen) / setting.items if sampler else 1.0)


def _loader(setting: Setting, order: Order, stack: ExitStack) -> tuple[Any, ImportanceSampler | None]:
    workers: dict[str, Any] = {"num_workers": setting.workers, "persistent_workers": True, "prefetch_factor": AHEAD}
    if order.source == "s3":
        keys = [setting.data.key(number) for number in range(setting.items)]
        objects = Objects(Bucket(order.endpoint, order.keys, order.bucket), keys, Sample(setting.side).of)
        shuffled = torch.Generator().manual_seed(order.seed)
        return DataLoader(objects, setting.batch, shuffle=True, generator=shuffled, **workers), None
    credentials = Credentials(*order.keys)
    job: Any = ""
    if order.job:
        described: dict[str, Any] = {"batch_size": setting.batch, "credentials": credentials}
        job = stack.enter_context(Job(order.endpoint, order.job, setting.name, **described))
    access = Access(credentials=credentials)
    options: dict[str, Any] = {"transform": Sample(setting.side), "access": access, "job": job}
    if order.source == "importance":
        dataset = CachedMapDataset(order.endpoint, setting.name, ids=True, **options)
        sampler = ImportanceSampler(dataset, seed=order.seed, **order.options)
        loader: Any = DataLoader(dataset, setting.batch, sampler=sampler, **workers)
    else:
        options |= {"batch_size": setting.batch, "seed": order.seed, **order.options}
        batches = CachedDataset(order.endpoint, setting.name, **options)
        loader, sampler = DataLoader(batches, batch_size=None, **workers), None
    return (job.watch(loader) if order.job else loader), sampler


def main() -> None:
    """Answer every order."""
    lines = questions()
    setting = Setting(**next(lines))
    pictures = held_out(setting)
    Learner(setting, 0, pictures).accuracy()  # loads the libraries' code before the first epoch
    reply({"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"})
    for line in lines:
        order = Order(**line)
        for epoch in train(setting, order, Learner(setting, order.seed, pictures)):
            reply(asdict(epoch))


if __name__ == "__main__":
    main()
