"""Decides which items a training process gets, and in which order: pure, without I/O, clock or threads.

``EpochOrder`` is the order of an epoch, ``EpochPlan`` one worker's share of it, and ``Progress`` the delivered part. Over all
ranks and workers each item is delivered exactly once per epoch, whatever the cache holds, even across resumes with other numbers
of workers and ranks.
"""

from larder.planner.layout import Layout, Shard
from larder.planner.numbers import NumberSet
from larder.planner.order import EpochOrder
from larder.planner.plan import Candidates, EpochPlan
from larder.planner.progress import Progress, merge, merge_states, union

__all__ = [
    "Candidates",
    "EpochOrder",
    "EpochPlan",
    "Layout",
    "NumberSet",
    "Progress",
    "Shard",
    "merge",
    "merge_states",
    "union",
]
