"""Messages between the demo and its training process."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A training task and its data.

    Args:
        origin: address of the origin, for boto3.
        gateway: address of the gateway, for the loader.
        dataset: its name at the gateway.
        bucket: of the images.
        training: the images to learn from, by key; each must come exactly once per epoch.
        testing: images to measure the accuracy with.
        epochs: number of epochs.
        seed: of the network and of both orders.
    """

    origin: str
    gateway: str
    dataset: str
    bucket: str
    training: dict[str, bytes]
    testing: dict[str, bytes]
    epochs: int
    seed: int

    def write(self, file: Path) -> None:
        """Write the task for `read`."""
        fields = asdict(self)
        for name in ("training", "testing"):
            fields[name] = {key: base64.b64encode(body).decode() for key, body in fields[name].items()}
        file.write_text(json.dumps(fields))

    @classmethod
    def read(cls, file: Path) -> TrainingPlan:
        """Parse the result of `write`."""
        fields = json.loads(file.read_text())
        for name in ("training", "testing"):
            fields[name] = {key: base64.b64decode(text) for key, text in fields[name].items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Epoch:
    """The results of one epoch.

    Args:
        way: the source of the images.
        number: of the epoch, from 0.
        seconds: of loading and learning, without measuring the accuracy.
        items: images received.
        hits: of these, in the cache when requested.
        joined: of these, already being fetched when requested, because the loader had announced them.
        origin_requests: requests at the origin during the epoch, counted there.
        accuracy: on the test images, after the epoch.
    """

    way: str
    number: int
    seconds: float
    items: int
    hits: int
    joined: int
    origin_requests: int
    accuracy: float
