"""When to try again, and after how long.

Full jitter, as in "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): each pause is drawn evenly between
nothing and a bound that doubles. A thousand workers that lose one gateway together then come back spread out.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a failed request is repeated.

    Args:
        attempts: requests sent at most, the first included.
        base: bound of the first pause in seconds; each further bound is twice the one before.
        longest: no pause is longer than this many seconds.

    Raises:
        ValueError: there is no attempt at all, or a time is negative.
    """

    attempts: int = 4
    base: float = 0.1
    longest: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.longest < 0:
            raise ValueError(f"attempts must be at least 1, base and longest at least 0: {self}")

    def pauses(self, chance: random.Random) -> Iterator[float]:
        """The seconds to wait before the second, third, ... attempt."""
        for attempt in range(self.attempts - 1):
            yield chance.uniform(0, min(self.longest, self.base * 2**attempt))
