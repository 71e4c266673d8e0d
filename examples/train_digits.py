"""Train a small network on images that come through a Larder gateway.

Needs ``larder[torch,digest]``, Pillow and, from ``make demo KEEP=1``, a gateway with the data; docs/loader.md goes through it.
The gateway's keys are found where AWS's tools look, such as ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from larder.torch import CachedDataset, CachedMapDataset, Item, WatchedLoader, watch


def decode(item: Item) -> tuple[Tensor, int]:
    """A PNG as 64 numbers between 0 and 1, and the label, which is part of the key: ``digits/LABEL/NUMBER.png``."""
    pixels = np.asarray(Image.open(io.BytesIO(item.data)), np.float32) / 255
    return torch.from_numpy(pixels).flatten(), int(item.key.split("/")[-2])


def main() -> None:
    """Train, and say after each epoch what it brought and what it cost."""
    options = arguments()
    torch.manual_seed(options.seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    dataset = CachedDataset(
        options.endpoint,
        options.dataset,
        batch_size=options.batch_size,
        substitute=options.substitute,
        seed=options.seed,
        transform=decode,
        keys=True,
    )
    workers = options.workers
    loader = watch(DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0))
    if options.checkpoint is not None and options.checkpoint.exists():
        resume(options.checkpoint, model, optimizer, loader)
    try:
        while (epoch := loader.state_dict()["epoch"]) < options.epochs:
            began = time.perf_counter()
            loss, accuracy = train(model, optimizer, loader)
            tested = f", on the test set {test(model, options):.1%}" if options.test else ""
            seconds = time.perf_counter() - began
            print(f"epoch {epoch}: {seconds:.1f} s, loss {loss:.3f}, accuracy {accuracy:.1%}{tested}")
            print(f"  so far: {loader.stats()}")
            save(options.checkpoint, model, optimizer, loader)
    except KeyboardInterrupt:
        save(options.checkpoint, model, optimizer, loader)
        raise SystemExit(
            f"stopped{'' if options.checkpoint is None else '; the same command goes on from here'}"
        ) from None


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: WatchedLoader) -> tuple[float, float]:
    """One epoch, or what is left of it; mean loss and accuracy, each batch judged before it is learnt from."""
    total = right = items = 0.0
    for images, labels in loader:
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        total += loss.item() * len(labels)
        right += (scores.argmax(1) == labels).sum().item()
        items += len(labels)
    return total / max(1, items), right / max(1, items)


def test(model: nn.Module, options: argparse.Namespace) -> float:
    """Accuracy on another dataset, in its own order: the map-style twin, which any sampler can read."""
    dataset = CachedMapDataset(options.endpoint, options.test, transform=decode, keys=True)
    right = 0
    with torch.no_grad():
        for images, labels in DataLoader(dataset, batch_size=256):
            right += int((model(images).argmax(1) == labels).sum())
    return right / len(dataset)


def save(file: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, loader: WatchedLoader) -> None:
    """Write everything that training goes on from; the file is whole at any moment."""
    if file is not None:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(states, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)


def resume(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: WatchedLoader) -> None:
    """Go on from a saved file, in the middle of an epoch if it was saved there."""
    states = torch.load(file)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    loader.load_state_dict(states["loader"])
    print(f"going on from {file}, in epoch {loader.state_dict()['epoch']}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default=os.environ.get("AWS_ENDPOINT_URL"), help="address of the gateway")
    parser.add_argument("--dataset", default="digits", help="a registered dataset, or a digest file")
    parser.add_argument("--test", help="another one to test on after each epoch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2, help="processes that load; 0 loads in this one")
    parser.add_argument("--substitute", type=int, default=10, help="candidates per item; 1 keeps to the order")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="saved after each epoch and on Ctrl-C, and gone on from")
    options = parser.parse_args()
    if options.endpoint is None:
        parser.error("--endpoint is missing, and AWS_ENDPOINT_URL is not set")
    return options


if __name__ == "__main__":
    main()
