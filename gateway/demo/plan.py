"""Messages between the demos and the processes of their jobs: a task as a file of JSON, results as lines of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from gateway.demo.processes import DemoFailed


class Message(BaseModel):
    """A message; bytes are base64 in JSON."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


M = TypeVar("M", bound=Message)


def read_task(kind: type[M], file: Path) -> M:
    """The task in a file."""
    return kind.model_validate_json(file.read_text())


def read_results(kind: type[M], file: Path) -> list[M]:
    """The results so far; an incomplete line is left for later."""
    if not file.exists():
        return []
    lines = file.read_text().splitlines(keepends=True)
    return [kind.model_validate_json(line) for line in lines if line.endswith("\n")]


def check_once(of: str, epoch: int, seen: Counter[str], expected: Iterable[str]) -> None:
    """Check that every key came exactly once in an epoch of a job.

    Raises:
        DemoFailed: one did not.
    """
    wanted = Counter(list(expected))
    if seen != wanted:
        lost, twice = (wanted - seen).total(), (seen - wanted).total()
        raise DemoFailed(f"epoch {epoch} of {of}: {lost} items did not come, {twice} came more than once")


class TrainingPlan(Message):
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


class Epoch(Message):
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
