"""Seeds of random numbers by purpose, so that they do not depend on the process that draws them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np


def seed_of(*purpose: int | str) -> int:
    """64 random bits, a pure function of ``purpose``."""
    return int.from_bytes(blake2b("/".join(map(str, purpose)).encode(), digest_size=8).digest(), "little")


def seed_generators(*purpose: int | str) -> None:
    """Seed the global generators of ``random``, numpy and, if it is loaded, PyTorch."""
    seed = seed_of("larder/pipeline", *purpose)  # pipelines used this name first: their values stay
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed would also queue a call for every accelerator.
        torch.default_generator.manual_seed(seed >> 1)


@contextmanager
def own_generators() -> Iterator[None]:
    """Restore the global generators afterwards, in a process that uses them for something else."""
    states = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    state = None if torch is None else torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None and state is not None:
            torch.default_generator.set_state(state)
