"""Messages between the demo and its training process."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What is to be trained, and on what.

    Args:
        origin: address of the origin, which boto3 reads from.
        gateway: address of the gateway, which the loader reads from.
        dataset: its name there.
        bucket: that the images are in.
        training: every image to learn from, by key: what must come, exactly once an epoch.
        testing: images to measure the accuracy with.
        epochs: how many.
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
        """Write it down for `read`."""
        fields = asdict(self)
        for name in ("training", "testing"):
            fields[name] = {key: base64.b64encode(body).decode() for key, body in fields[name].items()}
        file.write_text(json.dumps(fields))

    @classmethod
    def read(cls, file: Path) -> TrainingPlan:
        """Read what `write` wrote."""
        fields = json.loads(file.read_text())
        for name in ("training", "testing"):
            fields[name] = {key: base64.b64decode(text) for key, text in fields[name].items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch brought and cost.

    Args:
        way: by which the images came.
        number: of the epoch, from 0.
        seconds: of loading and learning; measuring the accuracy is not in it.
        items: images that came; all of them, each once.
        hits: of these, how many were in the cache when they were asked for.
        joined: and how many were on their way already, because the loader had announced them.
        origin_requests: requests at the origin during the epoch, counted there.
        accuracy: on the images for testing, after the epoch.
    """

    way: str
    number: int
    seconds: float
    items: int
    hits: int
    joined: int
    origin_requests: int
    accuracy: float
