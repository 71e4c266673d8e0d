"""The training part of the demo: one small network, trained on the same images through boto3 and through Larder's loader.

It is a separate process, because it forks workers and because PyTorch takes a while to import. Run as ``python -m
gateway.demo.training PLAN RESULTS``: PLAN is a file with a ``TrainingPlan``, RESULTS gets a line with an ``Epoch`` after each
epoch.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from gateway.demo.clients import origin_requests
from gateway.demo.plan import Epoch, TrainingPlan, check_once, read_task
from gateway.demo.processes import DemoFailed
from gateway.demo.ways import Batch, ImageSource, PlainBoto3, ThroughLarder, collate, decode

LEARNING_RATE = 0.003


def train(plan: TrainingPlan, way: ImageSource) -> Iterator[Epoch]:
    """Train a new network for all epochs.

    Raises:
        DemoFailed: an item did not come exactly once in an epoch, or its bytes were wrong.
    """
    torch.manual_seed(plan.seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    testing = collate([decode(key, body) for key, body in plan.testing.items()])
    for number in range(plan.epochs):
        requests, before, began = origin_requests(plan.origin), way.early(), time.perf_counter()
        seen = learn(model, optimizer, way, plan.training)
        seconds = time.perf_counter() - began
        requests = origin_requests(plan.origin) - requests
        hits, joined = (now - then for now, then in zip(way.early(), before, strict=True))
        check_once(f"the training through {way.name}", number, seen, plan.training)
        yield Epoch(
            way=way.name,
            number=number,
            seconds=seconds,
            items=seen.total(),
            hits=hits,
            joined=joined,
            origin_requests=requests,
            accuracy=accuracy(model, testing),
        )


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch], expected: dict[str, bytes]
) -> Counter[str]:
    """Learn from each batch, and count the received keys.

    Raises:
        DemoFailed: the bytes of an item differ from the stored ones.
    """
    seen: Counter[str] = Counter()
    for batch in batches:
        seen.update(batch.keys)
        for key, body in zip(batch.keys, batch.bodies, strict=True):
            if body != expected.get(key):
                raise DemoFailed(f"{key} was delivered with other bytes than those that were stored")
        loss = nn.functional.cross_entropy(model(torch.from_numpy(batch.pixels)), torch.from_numpy(batch.labels))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return seen


def accuracy(model: nn.Module, testing: Batch) -> float:
    """The share of images that the network classifies correctly."""
    with torch.no_grad():
        guessed = model(torch.from_numpy(testing.pixels)).argmax(1).numpy()
    return float(np.mean(guessed == testing.labels))


def main(plan_file: Path, results: Path) -> None:
    """Train with both sources. boto3 comes first: the loader keeps loading ahead for a moment after its end."""
    torch.set_num_threads(1)
    plan = read_task(TrainingPlan, plan_file)
    with results.open("w", buffering=1) as lines:
        for way in (PlainBoto3, ThroughLarder):
            for epoch in train(plan, way(plan)):
                lines.write(epoch.model_dump_json() + "\n")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except DemoFailed as failure:
        sys.exit(str(failure))
