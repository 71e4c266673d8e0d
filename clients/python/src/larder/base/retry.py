"""Retries with exponential backoff and full jitter.

As in "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): each pause is uniform between zero and a bound that doubles,
so that a thousand workers that lose a gateway together come back spread out.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from larder.base.options import whole_number


@dataclass(frozen=True, slots=True)
class Retry:
    """Repetition of failed requests.

    Args:
        attempts: maximum number of requests, the first included.
        base: bound of the first pause in seconds; it doubles with each pause.
        longest: maximum pause in seconds.
        outage: seconds since the last progress for which requests are repeated beyond ``attempts``.

    Raises:
        ValueError: ``attempts`` is below 1, or a time is negative.
    """

    attempts: int = 4
    base: float = 0.1
    longest: float = 2.0
    outage: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "attempts", whole_number("attempts", self.attempts, 1))
        if self.base < 0 or self.longest < 0 or self.outage < 0:
            raise ValueError(f"base, longest and outage are seconds of at least 0: {self}")


class Patience:
    """The retry budget of one call.

    Attempts are counted by cause: after a restart of a minute, a cut answer still has all its attempts.

    Args:
        retry: the limits.
        clock: monotonic seconds.
    """

    def __init__(self, retry: Retry, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry = retry
        self._clock = clock
        self._chance = random.SystemRandom()
        self.renew()

    def renew(self) -> None:
        """Reset the budget after progress."""
        self._failures: Counter[str] = Counter()
        self._since = self._clock()

    def brief(self) -> float:
        """Seconds to wait after a failed attempt that made progress."""
        return self._chance.uniform(0, self._retry.base)

    @property
    def failures(self) -> int:
        """Failed attempts since the last progress, for all causes."""
        return self._failures.total()

    def pause(self, cause: str) -> float | None:
        """Count a failed attempt. Returns the seconds to wait before the next one; ``None`` if the budget is used up."""
        self._failures[cause] += 1
        retry, count = self._retry, self._failures[cause]
        if count < retry.attempts:
            return self._chance.uniform(0, min(retry.longest, retry.base * 2 ** (count - 1)))
        if self._clock() - self._since < retry.outage:
            return self._chance.uniform(0, 2 * retry.longest)
        return None
