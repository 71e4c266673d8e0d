"""The two readers of the demo's training: plain boto3, and Larder's loader."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from gateway.demo.clients import ORIGIN_KEYS, VISION, s3_client
from gateway.demo.plan import TrainingPlan
from larder import Access, Credentials
from larder.torch import CachedDataset, Item, watch

WORKERS = 2
BATCH_SIZE = 16


class DemoImage(NamedTuple):
    """One image with its key and its original bytes, which are compared with the stored ones."""

    key: str
    body: bytes
    pixels: NDArray[np.float32]
    label: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one step."""

    keys: list[str]
    bodies: list[bytes]
    pixels: NDArray[np.float32]
    labels: NDArray[np.int64]


def decode(key: str, body: bytes) -> DemoImage:
    """The PNG ``digits/LABEL/NUMBER.png`` as 64 numbers between 0 and 1."""
    pixels = np.asarray(Image.open(io.BytesIO(body)), np.float32).reshape(-1) / np.float32(255)
    return DemoImage(key, body, pixels, int(key.split("/")[-2]))


def decode_item(item: Item) -> DemoImage:
    """The loader's transform."""
    return decode(item.key, bytes(item.data))


def collate(samples: Sequence[DemoImage]) -> Batch:
    """Arrays instead of tensors: batches this small are cheaper to send than to share."""
    return Batch(
        [sample.key for sample in samples],
        [sample.body for sample in samples],
        np.stack([sample.pixels for sample in samples]),
        np.array([sample.label for sample in samples], np.int64),
    )


class Objects(Dataset[DemoImage]):
    """Images by index, each read from the origin with boto3 on access."""

    def __init__(self, plan: TrainingPlan) -> None:
        self._origin = plan.origin
        self._bucket = plan.bucket
        self._keys = sorted(plan.training)
        self._client: Any = None

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> DemoImage:
        if self._client is None:  # one per worker, created after the fork
            self._client = s3_client(self._origin, ORIGIN_KEYS)
        key = self._keys[index]
        return decode(key, self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}


class ImageSource(Protocol):
    """A source of images."""

    name: str

    def __iter__(self) -> Iterator[Batch]:
        """One epoch."""

    def early(self) -> tuple[int, int]:
        """The items so far that were cached when requested, and those already being fetched."""


class PlainBoto3:
    """A map-style dataset, PyTorch's shuffling, and a GET for each item."""

    name = "boto3"

    def __init__(self, plan: TrainingPlan) -> None:
        self._loader = DataLoader(
            Objects(plan),
            batch_size=BATCH_SIZE,
            shuffle=True,
            generator=torch.Generator().manual_seed(plan.seed),
            num_workers=WORKERS,
            persistent_workers=True,
            collate_fn=collate,
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def early(self) -> tuple[int, int]:
        """Zero: there is no cache."""
        return 0, 0


class ThroughLarder:
    """The loader, used as in docs/loader.md."""

    name = "larder"

    def __init__(self, plan: TrainingPlan) -> None:
        dataset = CachedDataset(
            plan.gateway,
            plan.dataset,
            batch_size=BATCH_SIZE,
            seed=plan.seed,
            transform=decode_item,
            collate=collate,
            keys=True,
            access=Access(credentials=Credentials(VISION.access_key_id, VISION.secret_access_key)),
        )
        self._loader = watch(DataLoader(dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True))

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def early(self) -> tuple[int, int]:
        """The counts from the flags set by the gateway."""
        stats = self._loader.stats()
        return stats.hits, stats.joined
