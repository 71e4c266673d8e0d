"""When to try again, and after how long.

Full jitter, as in "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): each pause is drawn evenly between
nothing and a bound that doubles. A thousand workers that lose one gateway together then come back spread out.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a failed request is repeated.

    Args:
        attempts: requests sent at most, the first included.
        base: bound of the first pause in seconds; each further bound is twice the one before.
        longest: no pause is longer than this many seconds.
        outage: for how many seconds since the last progress requests go on being repeated beyond ``attempts``, whatever fails.

    Raises:
        ValueError: there is no attempt at all, or a time is negative.
    """

    attempts: int = 4
    base: float = 0.1
    longest: float = 2.0
    outage: float = 0.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.longest < 0 or self.outage < 0:
            raise ValueError(f"attempts must be at least 1, base, longest and outage at least 0: {self}")


class Patience:
    """What is left of a `Retry` for one call.

    Attempts are counted by cause: a restart of a minute, then one answer that is cut, are two troubles, and the first must not
    use up the attempts of the second.

    Args:
        retry: what is allowed.
        clock: seconds that only grow.
    """

    def __init__(self, retry: Retry, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry = retry
        self._clock = clock
        self._chance = random.SystemRandom()
        self.renew()

    def renew(self) -> None:
        """There was progress: everything is allowed again."""
        self._failures: Counter[str] = Counter()
        self._since = self._clock()

    def brief(self) -> float:
        """The seconds to wait when an attempt has failed that brought something."""
        return self._chance.uniform(0, self._retry.base)

    @property
    def failures(self) -> int:
        """Failed attempts since the last progress, of all causes."""
        return self._failures.total()

    def pause(self, cause: str) -> float | None:
        """An attempt has failed: the seconds to wait before the next one; ``None`` if there is none."""
        self._failures[cause] += 1
        retry, count = self._retry, self._failures[cause]
        if count < retry.attempts:
            return self._chance.uniform(0, min(retry.longest, retry.base * 2 ** (count - 1)))
        if self._clock() - self._since < retry.outage:
            return self._chance.uniform(0, 2 * retry.longest)
        return None
