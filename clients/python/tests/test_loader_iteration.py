"""Iterating over a loader, epoch after epoch, without a framework."""

import itertools
import json
import pickle
from collections import Counter

import pytest

import larder
from larder.testing import MemorySource
from larder.training.loader import Loader, Shard

ENDPOINT = "http://127.0.0.1:9"


def loader_of(items=103, batch_size=16, *, source=None, **options):
    """A loader of so many items in memory."""
    return Loader(ENDPOINT, "train", batch_size=batch_size, source=source or MemorySource(items), **options)


def indices_of(run):
    """The items of a run, in the order of delivery."""
    return [index for batch in run for index in batch.indices.tolist()]


class TestIteration:
    """A loader is iterated like any other."""

    def test_each_iteration_is_the_next_epoch(self):
        """Each iteration is the next epoch, with every item once, in a different order."""
        loader = loader_of(substitute=1)
        epochs = [indices_of(loader) for _ in range(3)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(103))] * 3
        assert epochs == [indices_of(loader_of(substitute=1).epoch(number)) for number in range(3)]

    @pytest.mark.parametrize("tail", ["short", "drop", "pad"])
    def test_the_length_is_that_of_an_epoch(self, tail):
        """Rule: ``len`` is that of a whole epoch, on which schedules count; the rest of a resumed one has another name."""
        loader = loader_of(tail=tail)
        assert len(loader) == len(list(loader)) == loader.batches_left()
        next(iter(loader))
        other = loader_of(tail=tail)
        other.load_state_dict(loader.state_dict())
        assert (len(other), other.batches_left()) == (len(loader), len(loader) - 1)
        assert len(list(other)) == len(loader) - 1
        assert other.batches_left() == len(other)

    def test_an_epoch_that_was_broken_off_begins_again(self):
        """After a break the same epoch comes again; after its last batch the next one, even if no further batch was requested."""
        loader = loader_of()
        for batch in loader:
            assert batch.epoch == 0
            break
        assert sorted(indices_of(itertools.islice(loader, len(loader)))) == list(range(103))
        assert next(iter(loader)).epoch == 1

    @pytest.mark.parametrize("at", [0, 1, 5, 7])
    def test_it_resumes_where_it_was(self, at):
        """Before and after a resume each item comes once in total, also if the resumed epoch is broken off and restarted."""
        loader = loader_of()
        first = indices_of(itertools.islice(loader, at))
        state = json.loads(json.dumps(loader.state_dict()))
        other = loader_of(batch_size=10)
        other.load_state_dict(state)
        next(iter(other))
        assert Counter(first * (at < 7) + indices_of(other)) == Counter(range(103))
        assert other.state_dict()["epoch"] == state["epoch"] + 1

    def test_a_copy_goes_on_by_itself(self):
        """A copy has the epoch of the original, and afterwards its own."""
        loader = loader_of()
        list(loader)
        other = pickle.loads(pickle.dumps(loader))
        list(other)
        assert [loader.state_dict()["epoch"], other.state_dict()["epoch"]] == [1, 2]

    @pytest.mark.parametrize("passed", [0, 3, 7, 100])
    def test_batches_can_be_passed_over(self, passed):
        """Skipped batches are not read, and the rest of the epoch follows; skipping past the end leads to the next epoch."""
        loader = loader_of(substitute=1)
        whole = indices_of(loader_of(substitute=1).epoch(0))
        loader.skip_batches(passed)
        assert indices_of(loader) == (whole[passed * 16 :] or indices_of(loader_of(substitute=1).epoch(1)))

    @pytest.mark.parametrize("passed", [-1, 1.0, True])
    def test_a_number_of_batches_is_a_whole_number(self, passed):
        """Anything else is refused."""
        with pytest.raises(ValueError, match="batches must be a whole number"):
            loader_of().skip_batches(passed)


class TestSequential:
    """The order of an evaluation."""

    @pytest.mark.parametrize("caching", ["full", "part", "none"])
    @pytest.mark.parametrize("ahead", [0, 1])
    def test_items_come_in_the_order_of_the_dataset(self, caching, ahead):
        """Every epoch has every item once, in order, however it is cached."""
        loader = loader_of(source=MemorySource(1003, caching=caching), order="sequential", ahead=ahead)
        for _ in range(2):
            assert indices_of(loader) == list(range(1003))
        assert loader.stats.padded == loader.stats.substitutions == 0
        assert all(len(announced) <= 128 for announced in loader.reader.prefetched)
        assert loader.reading == 1

    @pytest.mark.parametrize(("world", "items"), [(2, 103), (3, 97), (4, 1000)])
    def test_ranks_get_every_item_once_in_equally_many_batches(self, world, items):
        """Rule: ranks get equally many batches without padding, so none waits for a batch that another lacks."""
        loader = loader_of(items, order="sequential")
        runs = [list(loader.epoch(0, shard=Shard(rank, world, 0, 1))) for rank in range(world)]
        assert [indices_of(run) for run in runs] == [list(range(rank, items, world)) for rank in range(world)]
        assert {len(run) for run in runs} == {loader.batches(0, world)}

    def test_workers_take_turns(self):
        """The batches of the workers, one after the other, are those of a single process."""
        loader = loader_of(order="sequential")
        workers = [loader.epoch(0, shard=Shard(0, 1, worker, 2)) for worker in range(2)]
        turns = [batch for pair in itertools.zip_longest(*workers) for batch in pair if batch is not None]
        assert indices_of(turns) == list(range(103))

    @pytest.mark.parametrize("order", ["random", "sequential"])
    def test_it_resumes_in_its_order(self, order):
        """The rest follows; a state of a training epoch is refused, and the other way round."""
        loader = loader_of(order="sequential")
        next(iter(loader))
        other = loader_of(order="sequential", batch_size=10)
        other.load_state_dict(loader.state_dict())
        assert indices_of(other) == list(range(16, 103))
        state = loader_of(order=order).state_dict()
        with pytest.raises(larder.StateError, match="another order"):
            loader_of(order="sequential" if order == "random" else "random").load_state_dict(state)
