"""Saving and resuming at any batch: no item is repeated or lost, under any change in between."""

import json
from collections import Counter
from itertools import islice

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import larder
from larder.planner import Progress, union
from larder.reading.frames import MISSING
from larder.testing import MemorySource
from larder.torch import merge_states, watch
from tests.loader.making import (
    BATCH,
    N,
    dataset_of,
    fail_on_seven,
    index_of,
    loader_of,
    map_of,
    numbers,
    whole,
)


def watched(workers=0, **options):
    """A watched loader with kept workers, if there are any."""
    return watch(loader_of(dataset_of(**options), workers, persistent_workers=workers > 0))


def saved(loader):
    """Its state, after a journey through a checkpoint."""
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("at", [0, 1, 10, 12])
def test_without_workers_the_dataset_knows_its_state(at):
    """A plain loader without workers resumes from its dataset's state, after any number of batches."""
    dataset = dataset_of()
    first = list(islice(loader_of(dataset), at))
    other = dataset_of()
    other.load_state_dict(saved(dataset))
    rest = list(loader_of(other))
    assert Counter(numbers(first) + numbers(rest)) == whole()
    assert len(first) + len(rest) == len(loader_of(dataset))


@pytest.mark.parametrize("batch_size", [BATCH, N])
@pytest.mark.parametrize("wrapped", [watch, lambda loader: loader.dataset])
def test_a_batch_whose_transform_raised_was_not_delivered(wrapped, batch_size):
    """A checkpoint that is written because of the exception has the whole batch still to come, also if it was the last."""
    loader = loader_of(dataset_of(batch_size=batch_size, transform=fail_on_seven, collate=list))
    keeper = wrapped(loader)
    came = []
    with pytest.raises(larder.ItemUntransformable):
        came.extend(item for batch in (loader if keeper is loader.dataset else keeper) for item in batch)
    other = dataset_of(transform=index_of, collate=list)
    state = saved(keeper)
    assert state["epoch"] == 0
    other.load_state_dict(state)
    came += [item for batch in loader_of(other) for item in batch]
    assert Counter(came) == whole()


@pytest.mark.parametrize("workers", [(2, 0), (1, 2), (0, 2), (2, 1)])
@pytest.mark.parametrize("at", [1, 9])
def test_a_watched_loader_is_resumed_with_other_workers(workers, at):
    """Before and after a resume each item is received once in total, even if batches were in flight when the state was saved."""
    loader = watched(workers[0])
    first = numbers(islice(loader, at))
    other = watched(workers[1], batch_size=BATCH + 2)
    other.load_state_dict(saved(loader))
    assert Counter(first + numbers(other)) == whole()
    assert saved(other)["epoch"] == 1
    assert Counter(numbers(other)) == whole()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_length_after_a_resume_is_that_of_an_epoch(workers):
    """Rule: ``len`` is that of a whole epoch, on which schedules count; the rest of a resumed one has another name."""
    loader = watched(workers)
    numbers(islice(loader, 4))
    other = watched(workers)
    other.load_state_dict(saved(loader))
    left = len(loader) - 4
    assert [loader.batches_left(), other.batches_left(), len(other)] == [left, left, len(loader)]
    assert len(list(other)) == left
    assert other.batches_left() == len(other) == len(list(other))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_can_be_passed_over(workers):
    """The batches passed over are not read, by any worker; an iteration under way ends."""
    order = [sorted(map(int, batch)) for batch in loader_of(dataset_of(substitute=1))]
    loader = watched(workers, substitute=1)
    iterator = iter(loader)
    next(iterator)
    loader.skip_batches(3)
    with pytest.raises(larder.StateError, match="a state was loaded"):
        next(iterator)
    assert [sorted(map(int, batch)) for batch in loader] == order[4:]
    dataset = dataset_of(substitute=1)
    dataset.skip_batches(12)
    assert (dataset.batches_left(), len(list(dataset))) == (1, 1)


def test_states_of_ranks_are_merged_for_another_world_size():
    """Two ranks saved in mid-epoch resume as three; then a second save of those resumes as one rank, which finishes alone."""
    loaders = [watched(items=1003, rank=rank, world=2) for rank in range(2)]
    came = [number for loader in loaders for number in numbers(islice(loader, 20))]
    merged = merge_states([saved(loader) for loader in loaders])
    three = [watched(items=1003, rank=rank, world=3) for rank in range(3)]
    for loader in three:
        loader.load_state_dict(merged)
        came += numbers(islice(loader, 15))
    alone = watched(1, items=1003)
    alone.load_state_dict(merge_states([saved(loader) for loader in three]))
    assert Counter(came + numbers(alone)) == whole(1003)


def test_a_rank_does_not_load_the_state_of_another():
    """A rank refuses the unmerged state of another; the error has the remedy."""
    loader = watched(rank=0, world=2)
    next(iter(loader))
    with pytest.raises(larder.StateError, match="merge the states of all ranks"):
        watched(rank=1, world=2).load_state_dict(saved(loader))
    with pytest.raises(larder.StateError, match="merge the states of all ranks"):
        dataset_of().load_state_dict(saved(loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_an_epoch_is_the_start_of_the_next(workers):
    """A state saved after the last batch, asked for more or not, is resumed with the next epoch, complete."""
    for ask in (False, True):
        loader = watched(workers, substitute=1)
        numbers(islice(loader, len(loader)) if not ask else loader)
        state = saved(loader)
        assert state["epoch"] == 1
        expected = sorted(numbers(loader))
        other = watched(substitute=1)
        other.load_state_dict(state)
        assert sorted(numbers(other)) == expected == list(range(N))
        assert saved(other)["epoch"] == 2


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_the_last_batch_ends_the_epoch_for_every_tail(tail):
    """After ``len(loader)`` batches the state is that of the next epoch, also if items were dropped or repeated."""
    loader = watched(1, tail=tail, rank=1, world=2)
    iterator = iter(loader)
    epochs = [(next(iterator), saved(loader)["epoch"])[1] for _ in range(len(loader))]
    assert epochs == [0] * (len(loader) - 1) + [1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_may_go_back(workers):
    """Loading an earlier state into a loader that has gone on, its workers kept, brings the same items again."""
    loader = watched(workers)
    first = numbers(islice(loader, 3))
    state = saved(loader)
    numbers(loader), numbers(loader)
    loader.load_state_dict(state)
    assert saved(loader) == state
    assert Counter(first + numbers(loader)) == whole()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_loaded_after_iter_is_honoured(workers):
    """A state loaded after ``iter(loader)`` takes effect: the first batch is one of the remaining ones."""
    loader = watched()
    first = numbers(islice(loader, 3))
    other = watched(workers)
    iterator = iter(other)
    other.load_state_dict(saved(loader))
    assert Counter(first + numbers(iterator)) == whole()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_loaded_under_way_stops_the_iteration_loudly(workers):
    """An iterator that has delivered batches raises an error after a state was loaded."""
    loader = watched(workers)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(saved(loader))
    with pytest.raises(larder.StateError, match="begin a new one"):
        next(iterator)
    assert len(numbers(loader)) == N - BATCH


def test_without_workers_an_iteration_is_stopped_as_well():
    """The dataset of a plain loader raises, too, when it is asked on after a state was loaded."""
    dataset = dataset_of()
    iterator = iter(loader_of(dataset))
    next(iterator)
    dataset.load_state_dict(saved(dataset))
    with pytest.raises(larder.StateError, match="begin a new one"):
        next(iterator)


def test_two_iterations_in_one_process_do_not_share_items():
    """A dataset has one place in its epoch: a second iteration stops the first one loudly."""
    dataset = dataset_of()
    first = iter(loader_of(dataset))
    next(first)
    second = iter(loader_of(dataset))
    with pytest.raises(larder.StateError, match="another iteration"):
        next(first)
    assert Counter(numbers(second)) == whole()


def test_with_workers_and_unwatched_there_is_no_state():
    """The received batches are unknown, so requesting the state is an error with the remedy."""
    dataset = dataset_of()
    before = saved(dataset)
    list(loader_of(dataset, 1))
    with pytest.raises(larder.StateError, match=r"larder\.torch\.watch"):
        dataset.state_dict()
    with pytest.raises(larder.StateError, match=r"larder\.torch\.watch"):
        dataset.load_state_dict(before)


def test_an_unwatched_loader_with_workers_loads_a_state_before_it_starts():
    """A state loaded into the dataset reaches workers that are started later."""
    loader = watched()
    first = numbers(islice(loader, 3))
    dataset = dataset_of()
    dataset.load_state_dict(saved(loader))
    assert Counter(first + numbers(loader_of(dataset, 2))) == whole()


def test_the_dataset_of_a_watched_loader_has_its_state():
    """Frameworks that save the dataset save what its watched loader has received, and load it there."""
    loader = watched(1)
    first = numbers(islice(loader, 4))
    state = json.loads(json.dumps(loader.dataset.state_dict()))
    assert state == saved(loader)
    other = watched(1)
    other.dataset.load_state_dict(state)
    assert Counter(first + numbers(other)) == whole()


def test_set_epoch_after_a_resume_keeps_what_was_resumed():
    """Loops that call ``set_epoch(epoch)`` before every epoch, the resumed one included, lose nothing."""
    loader = watched()
    numbers(loader)
    first = numbers(islice(loader, 4))
    other = watched(1)
    other.load_state_dict(saved(loader))
    came = []
    for epoch in (1, 2):
        other.dataset.set_epoch(epoch)
        came.append(numbers(other))
    assert Counter(first + came[0]) == whole()
    assert Counter(came[1]) == whole()
    assert saved(other)["epoch"] == 3


def test_a_watched_epoch_that_was_broken_off_begins_again():
    """After ``break`` the next iteration is the whole epoch, although the last batches were waiting in the loader."""
    loader = watched(2, substitute=1)
    first = list(islice(loader, len(loader) - 1))
    assert iter(loader) is not iter(loader)
    again = list(loader)
    assert again[:-1] == first
    assert Counter(numbers(again)) == whole()


def test_a_state_of_another_dataset_is_refused():
    """The error names both datasets."""
    one, other = dataset_of(N), dataset_of(N + 1)
    with pytest.raises(larder.StateError) as caught:
        other.load_state_dict(one.state_dict())
    assert one._context.info().id in str(caught.value)
    assert other._context.info().id in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("version", 99), ("done", {"upto": -1, "bits": ""}), ("epoch", "x")])
def test_a_damaged_state_is_refused(field, value):
    """The error names the field."""
    state = dataset_of().state_dict()
    with pytest.raises(larder.StateError, match=field):
        watched().load_state_dict({**state, field: value})


def test_a_batch_that_was_left_out_counts():
    """A batch without samples is left out, and its items count as done: a resume does not request them again."""
    options = {"items": 20, "batch_size": 1, "substitute": 1, "transform": fail_on_seven, "on_error": "skip"}
    loader = watched(1, **options)
    for count, _ in enumerate(loader, 1):
        done = 20 if (state := saved(loader))["epoch"] else _done(state)
        assert done in (count, count + 1)
    assert done == 20


def _done(state):
    return Progress.from_json(state).share().size - Progress.from_json(state).share().left


def test_items_that_were_skipped_are_not_asked_for_again():
    """After a resume, what could not be had before stays left out of the epoch."""
    source = MemorySource(N, failures=dict.fromkeys(range(0, N, 5), MISSING))
    loader = watch(loader_of(dataset_of(source=source, on_missing="skip"), 1))
    first = numbers(islice(loader, 9))
    other = watched()
    other.load_state_dict(saved(loader))
    rest = numbers(other)
    assert not set(first) & set(rest)
    assert len(first + rest) + saved(loader)["skipped"] == N


# torchdata 0.11 calls a function that torch 2.13 deprecates.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
class TestStateful:
    """torchdata's StatefulDataLoader saves a state per worker."""

    @staticmethod
    def loader(workers, **options):
        """Theirs, on ours."""
        return StatefulDataLoader(dataset_of(**options), batch_size=None, num_workers=workers)

    @pytest.mark.parametrize("workers", [0, 1, 2])
    @pytest.mark.parametrize("at", [0, 5, 12])
    def test_it_goes_on_where_it_was(self, workers, at):
        """The batches before and after are each item once, and the epochs after that are whole ones."""
        loader = self.loader(workers)
        first = numbers(islice(loader, at))
        other = self.loader(workers)
        other.load_state_dict(saved(loader))
        assert Counter(first + numbers(other)) == whole()
        assert Counter(numbers(other)) == whole()

    @pytest.mark.parametrize("workers", [0, 2])
    def test_the_end_of_an_epoch_is_the_start_of_the_next(self, workers):
        """A state saved after the last batch, whether or not another was requested, resumes with the whole next epoch."""
        plain = loader_of(dataset_of(substitute=1))
        epochs = [sorted(map(sorted, plain)) for _ in range(3)]
        for ask in (False, True):
            loader = self.loader(workers, substitute=1)
            iterator = iter(loader)
            first = list(iterator if ask else islice(iterator, len(loader)))
            assert sorted(map(sorted, first)) == epochs[0]
            other = self.loader(workers, substitute=1)
            other.load_state_dict(saved(loader))
            assert sorted(map(sorted, other)) == epochs[1]
            assert sorted(map(sorted, other)) == epochs[2]

    def test_a_second_resume_in_one_epoch(self):
        """Saved, resumed, saved again and resumed again: still each item once."""
        came, state = [], None
        for _ in range(4):
            loader = self.loader(2)
            if state is not None:
                loader.load_state_dict(state)
            came += numbers(islice(loader, 3))
            state = saved(loader)
        loader = self.loader(2)
        loader.load_state_dict(state)
        assert Counter(came + numbers(loader)) == whole()

    def test_it_goes_on_from_a_state_with_skipped_items(self):
        """Skipped items are counted once, not once per worker, when workers are saved and resumed."""
        source = MemorySource(N, failures=dict.fromkeys(range(0, N, 5), MISSING))
        loader = watched(source=source, on_missing="skip")
        came = numbers(islice(loader, 5))
        dataset = dataset_of(source=source, on_missing="skip")
        dataset.load_state_dict(saved(loader))
        second = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
        came += numbers(islice(second, 2))
        parts = saved(second)["_snapshot"]["_worker_snapshots"].values()
        together = union(
            [Progress.from_json(part["dataset_state"]["own"]) for part in parts], batch_size=BATCH, tail="short"
        )
        assert len(together.done) - together.skipped == len(came)
        third = self.loader(2, source=source, on_missing="skip")
        third.load_state_dict(saved(second))
        assert Counter(came + numbers(third)) == whole() - Counter(range(0, N, 5))

    def test_the_state_of_a_worker_is_no_state_of_a_rank(self):
        """Part of a StatefulDataLoader's state, loaded into the dataset itself, is refused."""
        loader = self.loader(1)
        next(iter(loader))
        part = saved(loader)["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
        with pytest.raises(larder.StateError, match="of one DataLoader worker"):
            dataset_of().load_state_dict(part)


class TestWatching:
    """Watching a loader: batches, length, statistics, refusals."""

    @pytest.mark.parametrize("workers", [0, 2])
    def test_batches_and_length_are_the_loaders(self, workers):
        """Watching changes no batch and no length."""
        plain = loader_of(dataset_of(substitute=1))
        loader = watched(workers, substitute=1)
        assert list(loader) == list(plain)
        assert len(loader) == len(plain)
        assert loader.num_workers == workers

    def test_stats_are_those_of_the_batches_received(self):
        """Workers' counts arrive with the batches; batches that were not received do not count."""
        loader = watched(2, cached=0.4)
        assert len(numbers(islice(loader, 5))) == 5 * BATCH
        assert loader.stats().items == 5 * BATCH
        loader.load_state_dict(saved(loader))
        numbers(loader), numbers(loader)
        stats = loader.dataset.stats()
        assert stats.items == 2 * N
        assert stats.hits + stats.origin_reads == 2 * N
        assert stats.order.correlation is not None
        assert stats.waited > 0
        assert stats.computed > 0

    def test_only_our_datasets_can_be_watched(self):
        """Another dataset is refused with the name of its type."""
        with pytest.raises(TypeError, match="not of list"):
            watch(DataLoader([1, 2, 3]))
        with pytest.raises(TypeError, match="takes the DataLoader of a CachedDataset or CachedMapDataset, not a list"):
            watch([1, 2, 3])

    def test_a_loader_whose_workers_run_cannot_be_watched(self):
        """Workers that were started without tags cannot put them on."""
        loader = loader_of(dataset_of(), 1, persistent_workers=True)
        next(iter(loader))
        with pytest.raises(ValueError, match="before its first iteration"):
            watch(loader)

    def test_an_indexed_dataset_has_no_state(self):
        """The order is the sampler's: the error says who can save it."""
        loader = watch(DataLoader(map_of(), batch_size=BATCH))
        assert Counter(numbers(loader)) == whole()
        assert loader.stats().items == N
        with pytest.raises(larder.StateError, match="sampler"):
            loader.state_dict()

    def test_the_original_loader_still_works(self):
        """The loader that was watched gives plain batches, too."""
        loader = loader_of(dataset_of(), 1)
        watch(loader)
        assert Counter(numbers(loader)) == whole()
