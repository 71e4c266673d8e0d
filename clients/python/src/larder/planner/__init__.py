"""Which items a training process gets, in which order: pure decisions, without I/O, clock or threads.

``EpochOrder`` is the order of an epoch, ``EpochPlan`` one worker's share of it, and ``Progress`` the delivered part. Whatever the
cache holds and whatever is used of it, over all ranks and workers each item is delivered exactly once per epoch, also across
resumes under other numbers of workers and ranks.
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
