"""Permutations that are the same on every machine and under every version of numpy.

**Orders of an epoch** (`permutation`). A job that resumes must get the same order again. numpy guarantees that for the raw
streams of its bit generators (NEP 19), not for ``Generator.permutation``, so the step from stream to permutation is done here.
The stream is Philox4x64 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), keyed with the BLAKE2b hash of
its purpose.

"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def raw(count: int, *purpose: str | int) -> NDArray[np.uint64]:
    """``count`` random 64-bit numbers, a pure function of ``purpose``."""
    name = "/".join(["larder", *map(str, purpose)]).encode()
    key = np.frombuffer(blake2b(name, digest_size=16).digest(), "<u8").astype(np.uint64)
    return np.asarray(np.random.Philox(key=key).random_raw(count), np.uint64)


def permutation(count: int, *purpose: str | int) -> NDArray[np.uint32]:
    """A uniform permutation of ``range(count)``, a pure function of ``purpose``; ``count`` is at most 2**32.

    Each number gets random high bits, and the keys are sorted. Equal random bits favour the smaller number, which affects a
    handful of neighbours among ten million. In return all keys differ, so every sorting algorithm gives the same order.
    """
    bits = np.uint64(max(1, (count - 1).bit_length()))
    keys = raw(count, *purpose)
    keys <<= bits
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return keys.astype(np.uint32)
