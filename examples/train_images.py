"""Train a small network on JPEGs in folders named by class: docs/own-images.md. Needs ``larder[torch,digest]`` and Pillow."""

import argparse
import io
import os

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

import larder
from larder.torch import CachedDataset, watch

SIDE = 64
"""Pixels."""


def folder(key: str) -> str:
    """The name of the folder that an image is in: ``train/cats/0001.jpg`` is a cat."""
    return key.split("/")[-2]


class Decode:
    """Makes pixels and a class number of an item; a class of its own, so that workers can have it."""

    def __init__(self, classes: list[str]) -> None:
        self.number = {name: number for number, name in enumerate(classes)}

    def __call__(self, item: larder.Item) -> tuple[Tensor, int]:
        """An image as 3 x SIDE x SIDE numbers between 0 and 1, and its class."""
        image = Image.open(io.BytesIO(item.data)).convert("RGB").resize((SIDE, SIDE))
        pixels = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
        return torch.from_numpy(pixels), self.number[folder(item.key)]


def network(classes: int) -> nn.Module:
    """Two convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, classes),
    )  # fmt: skip


def main() -> None:
    """Train, and say what each epoch brought and what the cache did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="a digest file, or a registered dataset")
    parser.add_argument("--endpoint", default=os.environ.get("AWS_ENDPOINT_URL", "http://127.0.0.1:9000"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    keys = larder.Loader(options.endpoint, options.dataset, batch_size=1).keys
    classes = sorted({folder(key) for _, key in keys})
    dataset = CachedDataset(
        options.endpoint, options.dataset, batch_size=32, seed=1, transform=Decode(classes), keys=True
    )
    loader = watch(DataLoader(dataset, batch_size=None, num_workers=options.workers))
    model = network(len(classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    print(f"{len(keys)} images in {len(classes)} classes: {', '.join(classes)}")
    for epoch in range(options.epochs):
        right = seen = 0
        for images, labels in loader:
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            right, seen = right + int((scores.argmax(1) == labels).sum()), seen + len(labels)
        print(f"epoch {epoch}: accuracy {right / max(1, seen):.0%}; {loader.stats()}")


if __name__ == "__main__":
    main()
