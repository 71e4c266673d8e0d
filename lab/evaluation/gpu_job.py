"""A training process of ``lab.evaluation.gpu``: ``python -m lab.evaluation.gpu_job``.

The first line on standard input is the `Setting` as JSON, each further line an `Order`; each is answered by a line. So a network
is built and warmed up once, and all ways of feeding use the same one.

The loop is always one step ahead of the GPU: it requests the next mini-batch while the GPU computes. The GPU's events, one before
and one after each step, show how long it was idle in between.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import larder
from lab.evaluation.jobs import s3_client
from lab.evaluation.trainers import questions, reply
from larder import Credentials
from larder.reading.source import Access
from larder.torch import CachedDataset, watch

CLASSES = 1000
THREADS = 8
"""Requests that a worker has in flight when it reads object by object."""
_WARM = 6
"""Steps before the first order: cuDNN chooses its kernels."""
_MEAN, _DEVIATION = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


@dataclass(frozen=True)
class Setting:
    """The shared settings of all orders: the network, items of a mini-batch, pixels of a side, and the files of the dataset."""

    network: str
    batch: int
    crop: int
    files: str
    items: int

    def key(self, number: int) -> str:
        """The path of an item below the dataset's folder."""
        return f"{number:06}.jpg"


@dataclass(frozen=True)
class Order:
    """One run of the training loop.

    Args:
        source: ``synthetic``, ``files``, ``s3`` or ``larder``.
        workers: processes of the ``DataLoader``.
        seed: of the order of the items.
        epochs: number of epochs.
        limit: the most seconds of the run.
        endpoint: of the store or gateway.
        keys: access key and secret for it.
        bucket: with the items; for the loader, the dataset's name.
        prefix: of their keys.
        exact: the loader's seeded order, without substitution.
        job: name to register as, for chunks that the fleet loads; empty for none.
    """

    source: str
    workers: int
    seed: int
    epochs: int
    limit: float
    endpoint: str = ""
    keys: tuple[str, str] = ("", "")
    bucket: str = ""
    prefix: str = ""
    exact: bool = False
    job: str = ""


@dataclass
class Answer:
    """The start of a run and the end of each step, on the machine's clock; seconds that the GPU was idle before each step."""

    began: float
    times: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    epochs: int = 0


class Decode:
    """The pixels of a JPEG: decoded at half its size, a random square cut out, mirrored every second time."""

    def __init__(self, crop: int) -> None:
        self._crop = crop

    def __call__(self, item: Any) -> tuple[Tensor, int]:
        """Decode an item of the loader."""
        return self.sample(item.data, item.index)

    def sample(self, data: Any, number: int) -> tuple[Tensor, int]:
        """Pixels, and a class that follows from the item's number."""
        image = Image.open(io.BytesIO(data))
        image.draft("RGB", (self._crop, self._crop))
        pixels = np.asarray(image)
        top, left = (np.random.randint(length - self._crop + 1) for length in pixels.shape[:2])
        cut = pixels[top : top + self._crop, left : left + self._crop]
        if np.random.rand() < 0.5:
            cut = cut[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(cut)), number % CLASSES


class Files(Dataset[Any]):
    """The items as files of this machine."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._decode = Decode(setting.crop)

    def __len__(self) -> int:
        return self._setting.items

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        data = (Path(self._setting.files) / self._setting.key(number)).read_bytes()
        return self._decode.sample(data, number)


@dataclass(frozen=True)
class Bucket:
    """The address, access key and secret, and name of a bucket."""

    endpoint: str
    keys: tuple[str, str]
    name: str


class Objects(Dataset[Any]):
    """The items read object by object with boto3, in some threads of each worker; ``sample`` gets an item and its number."""

    def __init__(self, bucket: Bucket, keys: Sequence[str], sample: Callable[[bytes, int], Any]) -> None:
        self._bucket = bucket
        self._keys = keys
        self._sample = sample
        self._client: Any = None
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._keys)

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        if self._client is None:  # each worker has its own
            self._client = s3_client(self._bucket.endpoint, *self._bucket.keys, connections=THREADS)
            self._pool = ThreadPoolExecutor(THREADS)
        return [
            self._sample(data, number)
            for data, number in zip(self._pool.map(self._read, numbers), numbers, strict=True)
        ]

    def _read(self, number: int) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket.name, Key=self._keys[number])
        data: bytes = answer["Body"].read()
        return data


class Trainer:
    """A network in training, on the GPU if there is one."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(1)
        torch.backends.cudnn.benchmark = True
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self._setting = setting
        self._network = network(setting.network).to(self.device, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01, momentum=0.9)
        self._mean = torch.tensor(_MEAN, device=self.device).view(1, 3, 1, 1)
        self._deviation = torch.tensor(_DEVIATION, device=self.device).view(1, 3, 1, 1)
        one = self.synthetic()
        for _ in range(_WARM):
            self.step(*one)
        self.wait()

    def synthetic(self) -> tuple[Tensor, Tensor]:
        """A mini-batch that is already on the device."""
        shape = (self._setting.batch, self._setting.crop, self._setting.crop, 3)
        images = torch.randint(256, shape, dtype=torch.uint8, device=self.device)
        return images, torch.randint(CLASSES, (self._setting.batch,), device=self.device)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Train on a mini-batch; returns once all work is in the GPU's queue."""
        pixels = images.to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
            scores = self._network((pixels - self._mean) / self._deviation)
            loss = nn.functional.cross_entropy(scores, labels.to(self.device, non_blocking=True))
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()

    def wait(self) -> None:
        """Wait until the GPU has finished."""
        if self.cuda:
            torch.cuda.synchronize()

    def event(self) -> Any:
        """A mark in the GPU's queue."""
        if not self.cuda:
            return None
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark


def network(name: str) -> nn.Module:
    """One of torchvision's, or ``small``: two convolutions."""
    if name == "small":
        return nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, CLASSES),
        )  # fmt: skip
    from torchvision import models

    built: nn.Module = models.get_model(name)
    return built


def train(trainer: Trainer, epochs: Iterable[Iterable[Any]], limit: float) -> Answer:
    """Run the loop over some epochs, for ``limit`` seconds at most."""
    trainer.wait()
    answer, marks = Answer(time.monotonic()), []
    asked = answer.began
    before: Any = trainer.event()
    for batches in epochs:
        for images, labels in batches:
            arrived = time.monotonic()
            begin = trainer.event()
            trainer.step(images, labels)
            end = trainer.event()
            marks.append((before, begin))
            if before is not None:
                before.synchronize()  # the previous step; the current one is still running
            before = end
            asked, waited = time.monotonic(), arrived - asked
            answer.times.append(asked)
            answer.idle.append(waited)
            if asked - answer.began > limit:
                break
        else:
            answer.epochs += 1
            continue
        break
    trainer.wait()
    if trainer.cuda:
        answer.idle = [earlier.elapsed_time(later) / 1e3 for earlier, later in marks]
    return answer


def run(trainer: Trainer, setting: Setting, order: Order) -> Answer:
    """Carry out an order."""
    if order.source == "synthetic":
        one = trainer.synthetic()
        steps = setting.items // setting.batch
        return train(trainer, ((one for _ in range(steps)) for _ in range(order.epochs)), order.limit)
    with ExitStack() as stack:
        loader = _loader(setting, order, stack, pinned=trainer.cuda)
        return train(trainer, (loader for _ in range(order.epochs)), order.limit)


def _loader(setting: Setting, order: Order, stack: ExitStack, pinned: bool) -> Any:
    options: dict[str, Any] = {
        "num_workers": order.workers,
        "pin_memory": pinned,
        "persistent_workers": True,
        "prefetch_factor": 2,
    }
    if order.source != "larder":
        data: Any = Files(setting) if order.source == "files" else _objects(setting, order)
        shuffled = torch.Generator().manual_seed(order.seed)
        return DataLoader(data, setting.batch, shuffle=True, generator=shuffled, drop_last=True, **options)
    credentials = Credentials(*order.keys)
    described: dict[str, Any] = {"batch_size": setting.batch, "seed": order.seed, "tail": "drop"}
    if order.exact:
        described["substitute"] = 1
    if not order.job:
        dataset = _dataset(setting, order, described, credentials)
        return watch(DataLoader(dataset, batch_size=None, **options))
    job = stack.enter_context(
        larder.Job(
            order.endpoint,
            order.job,
            order.bucket,
            batch_size=setting.batch,
            credentials=credentials,
        )
    )
    dataset = _dataset(setting, order, {**described, "job": job}, credentials)
    return job.watch(DataLoader(dataset, batch_size=None, **options))


def _objects(setting: Setting, order: Order) -> Objects:
    bucket = Bucket(order.endpoint, order.keys, order.bucket)
    keys = [order.prefix + setting.key(number) for number in range(setting.items)]
    return Objects(bucket, keys, Decode(setting.crop).sample)


def _dataset(setting: Setting, order: Order, options: dict[str, Any], credentials: Credentials) -> CachedDataset:
    return CachedDataset(
        order.endpoint,
        order.bucket,
        transform=Decode(setting.crop),
        access=Access(credentials=credentials),
        **options,
    )


def main() -> None:
    """Answer every line."""
    lines = questions()
    setting = Setting(**next(lines))
    trainer = Trainer(setting)
    reply({"device": torch.cuda.get_device_name() if trainer.cuda else "cpu"})
    for line in lines:
        reply(asdict(run(trainer, setting, Order(**line))))


if __name__ == "__main__":
    main()
