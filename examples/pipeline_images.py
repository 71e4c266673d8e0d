"""Decode, resize and augment JPEGs in worker processes, as in docs/pipelines.md. Needs ``larder[pipelines]`` and Pillow."""

import argparse
import io
import time
from typing import Any

import numpy as np
from PIL import Image

import larder


def decode(item: larder.Item) -> dict[str, Any]:
    """A JPEG as 96 x 96 pixels, and its label, which is part of the key: ``train/LABEL/NUMBER.jpg``."""
    image = Image.open(io.BytesIO(item.data)).convert("RGB").resize((96, 96))
    return {"image": np.asarray(image), "label": int(item.key.split("/")[-2])}


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    """A random crop of 80 x 80 pixels, mirrored every second time."""
    top, left = np.random.randint(17, size=2)
    crop = sample["image"][top : top + 80, left : left + 80]
    return {**sample, "image": crop[:, ::-1] if np.random.rand() < 0.5 else crop}


def main() -> None:
    """Go through two epochs, and say what they cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="a registered dataset, or a digest file")
    parser.add_argument("--workers", help='worker processes, by default one per core; or "ray", "ray:4" or "local+ray"')
    options = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    if options.get("workers", "").isdigit():
        options["workers"] = int(options["workers"])

    pipeline = larder.pipeline(**options, keys=True, seed=1).map(decode).autocache().map(augment).batch(16)
    for epoch in range(2):
        began, images = time.perf_counter(), 0
        for batch in pipeline:
            images += len(batch["label"])  # a training step with batch["image"], 16 x 80 x 80 x 3 bytes
        print(f"epoch {epoch}: {images} images, {images / (time.perf_counter() - began):.0f} per second")
    for stage, costs in pipeline.stats()["stages"].items():
        print(f"{stage}: {1000 * costs['seconds']:.2f} ms and {costs['bytes']:.0f} bytes per image")


if __name__ == "__main__":
    main()
