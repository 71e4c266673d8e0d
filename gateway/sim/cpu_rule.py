"""Workers by processor time, as Kubernetes' HorizontalPodAutoscaler finds them: the baseline of Cachew (ATC 2022, section 6.1).

The rule and its defaults are those of Kubernetes' documentation ("Horizontal Pod Autoscaling", algorithm details, and the default
behaviour of ``autoscaling/v2``). Every ``period`` it wants ``workers x utilization / target``, rounded up; nothing changes if the
ratio is within ``tolerance`` of 1. It may double the workers or add four per period, and takes as many away as all of the last
``settling`` seconds allow. It knows nothing of batches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

_MORE = 4
"""Workers that a period may add if that is more than twice as many."""


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """The settings of the rule.

    Args:
        target: processor time of a worker that is aimed at, as a share.
        tolerance: deviation of the ratio that changes nothing.
        period: seconds between two decisions.
        settling: seconds of which the highest recommendation counts.
        most: workers that a job may have.
    """

    target: float = 0.8
    tolerance: float = 0.1
    period: float = 15.0
    settling: float = 300.0
    most: int = 64


class CpuRule:
    """The rule for one job.

    Args:
        settings: of the rule.
    """

    def __init__(self, settings: CpuTarget) -> None:
        self.settings = settings
        self._wanted: deque[tuple[float, int]] = deque()

    def after(self, now: float, utilization: float, workers: int) -> int:
        """The number of workers from now on.

        Args:
            now: seconds.
            utilization: processor seconds per second of a worker in the last period.
            workers: present number.
        """
        settings = self.settings
        ratio = utilization / settings.target
        steady = abs(ratio - 1) <= settings.tolerance
        wanted = workers if steady else max(1, min(settings.most, ceil(workers * ratio)))
        while self._wanted and self._wanted[0][0] <= now - settings.settling:
            self._wanted.popleft()
        self._wanted.append((now, wanted))
        if wanted >= workers:
            return min(wanted, max(2 * workers, workers + _MORE))
        return min(workers, max(number for _, number in self._wanted))
