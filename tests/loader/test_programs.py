"""Each epoch has each item once under any sequence of a training loop's operations."""

from collections import Counter
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from larder.torch import watch
from tests.effort import examples
from tests.loader.making import dataset_of, loader_of, numbers, whole

STEP = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 12)),
    st.tuples(st.just("resume"), st.integers(1, 20)),
    st.tuples(st.just("break"), st.just(0)),
    st.tuples(st.just("finish"), st.just(0)),
)


class Loop:
    """A training loop, with the items received in its epoch."""

    def __init__(self, items, options):
        self.items, self.options = items, options
        self.epoch = 0
        self.received, self.begun_with = Counter(), Counter()
        self.loader = self.make(8)
        self.iterator = iter(self.loader)

    def make(self, batch_size):
        """A loader of the same dataset."""
        return watch(loader_of(dataset_of(self.items, batch_size=batch_size, **self.options)))

    def take(self, count):
        """Take some batches; the end of the epoch ends this as well."""
        batches = list(islice(self.iterator, count))
        self.received.update(numbers(batches))
        if len(batches) < count:
            self.finish(0)

    def finish(self, _):
        """Take all that is left, and begin the next epoch."""
        self.received.update(numbers(self.iterator))
        assert self.received == whole(self.items)
        self.epoch += 1
        self.received, self.begun_with = Counter(), Counter()
        self.iterator = iter(self.loader)

    def resume(self, batch_size):
        """Save, and resume in a new loader with other batches."""
        state = self.loader.state_dict()
        if state["epoch"] > self.epoch:
            assert self.received == whole(self.items)
            self.epoch, self.received = state["epoch"], Counter()
        self.loader = self.make(batch_size)
        self.loader.load_state_dict(state)
        self.begun_with = self.received.copy()
        self.iterator = iter(self.loader)

    def break_off(self, _):
        """Begin the epoch again, or the next one if nothing was left of it."""
        if self.loader.state_dict()["epoch"] > self.epoch:
            assert self.received == whole(self.items)
            self.epoch, self.begun_with = self.epoch + 1, Counter()
        self.received = self.begun_with.copy()
        self.iterator = iter(self.loader)


@settings(max_examples=examples(60))
@given(
    steps=st.lists(STEP, max_size=12),
    items=st.integers(1, 60),
    substitute=st.sampled_from([1, 2, 10, 10**6]),
    cached=st.sampled_from([0.0, 0.3, 1.0]),
    ahead=st.sampled_from([0, 1]),
)
def test_whatever_a_loop_does_each_epoch_has_each_item_once(steps, items, substitute, cached, ahead):
    """Taking, breaking off, saving and resuming with other batch sizes, in any order."""
    loop = Loop(items, {"substitute": substitute, "cached": cached, "ahead": ahead})
    for action, argument in steps:
        {"take": loop.take, "resume": loop.resume, "break": loop.break_off, "finish": loop.finish}[action](argument)
    loop.finish(0)
