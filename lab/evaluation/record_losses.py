"""Records a real training run for the simulator: the loss of each sample, epoch by epoch.

    python -m lab.evaluation.record_losses

trains a small network on scikit-learn's handwritten digits (1,797 samples of 64 pixels, ten classes, of which ``_NOISY`` have a
wrong label, so that some stay hard), each sample once per epoch in mini-batches of 32, and writes what each sample's loss was
when it was trained to ``gateway/sim/scenarios/digits-losses.npz``. Everything is drawn from one seed, so the file can be made
again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

EPOCHS = 20
BATCH = 32
_HIDDEN = 64
_RATE = 0.1
_NOISY = 0.05
"""Share of samples with a random label."""
_SEED = 2023
TARGET = Path(__file__).resolve().parents[2] / "gateway" / "sim" / "scenarios" / "digits-losses.npz"

Floats = NDArray[np.float64]


class Network:
    """One hidden layer of rectified units and a softmax, trained by plain gradient descent."""

    def __init__(self, inputs: int, classes: int, rng: np.random.Generator) -> None:
        self._layers: tuple[Floats, Floats] = (
            rng.normal(0, np.sqrt(2 / inputs), (inputs, _HIDDEN)),
            rng.normal(0, np.sqrt(1 / _HIDDEN), (_HIDDEN, classes)),
        )
        self._biases: tuple[Floats, Floats] = (np.zeros(_HIDDEN), np.zeros(classes))

    def step(self, pixels: Floats, labels: NDArray[np.int64]) -> Floats:
        """Train on a mini-batch and return the loss of each sample before that (SHADE, Eq. 3)."""
        rows = np.arange(len(labels))
        hidden = np.maximum(pixels @ self._layers[0] + self._biases[0], 0)
        logits = hidden @ self._layers[1] + self._biases[1]
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses = -np.log(np.maximum(chances[rows, labels], 1e-12))
        slope = chances.copy()
        slope[rows, labels] -= 1
        slope /= len(labels)
        back = (slope @ self._layers[1].T) * (hidden > 0)
        for layer, bias, inputs, change in zip(
            self._layers, self._biases, (pixels, hidden), (back, slope), strict=True
        ):
            layer -= _RATE * inputs.T @ change
            bias -= _RATE * change.sum(axis=0)
        found: Floats = losses
        return found


def record() -> NDArray[np.float16]:
    """The losses, by epoch and sample."""
    rng = np.random.default_rng(_SEED)
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels / 16
    wrong = rng.random(len(labels)) < _NOISY
    labels = np.where(wrong, rng.integers(0, 10, len(labels)), labels)
    network = Network(pixels.shape[1], 10, rng)
    losses = np.zeros((EPOCHS, len(labels)), dtype=np.float16)
    for epoch in range(EPOCHS):
        order = rng.permutation(len(labels))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            losses[epoch, batch] = network.step(pixels[batch], labels[batch])
    return losses


if __name__ == "__main__":
    np.savez_compressed(TARGET, losses=record())
    print(f"wrote {TARGET}")
