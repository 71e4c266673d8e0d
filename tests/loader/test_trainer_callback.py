"""The Trainer's callback, called as the Trainer calls it; the package itself is not needed."""

from collections import Counter
from importlib import import_module
from itertools import islice
from types import SimpleNamespace

import pytest

import larder
from larder.base.ranks import Ranks
from larder.torch import watch
from tests.loader.making import dataset_of, loader_of, numbers, whole

SKIPPING = SimpleNamespace(ignore_data_skip=True)
SAVING = SimpleNamespace(should_save=True)


@pytest.fixture(scope="module")
def transformers():
    """Returns the module; importing it here costs only these tests the second that its import of transformers takes."""
    return import_module("larder.torch.transformers")


def at(step, **callbacks):
    """The Trainer's state; of a checkpoint that has these callbacks."""
    return SimpleNamespace(global_step=step, stateful_callbacks=callbacks)


def test_states_of_ranks_are_saved_as_one(monkeypatch, transformers):
    """Rule: the first rank saves the state of all ranks; one process resumes with exactly the rest."""
    ranks = [watch(loader_of(dataset_of(rank=rank, world=2))) for rank in range(2)]
    first = [number for loader in ranks for number in numbers(islice(loader, 2))]

    def gather(states, mine):
        assert mine == ranks[0].state_dict()
        states[:] = [loader.state_dict() for loader in ranks]

    monkeypatch.setattr(transformers, "distributed_ranks", lambda: Ranks(0, 2))
    monkeypatch.setattr(transformers.distributed, "all_gather_object", gather)
    saving = transformers.LoaderState()
    saving.on_train_begin(SKIPPING, at(0), None, train_dataloader=ranks[0])
    saving.on_epoch_end(SKIPPING, at(2), SimpleNamespace(should_save=False))
    assert saving.saved is None
    saving.on_step_end(SKIPPING, at(2), SAVING)
    resumed = watch(loader_of(dataset_of()))
    transformers.LoaderState().on_train_begin(
        SKIPPING, at(2, LoaderState=saving.state()), None, train_dataloader=resumed
    )
    assert Counter(first + numbers(resumed)) == whole()


@pytest.mark.parametrize(
    ("skips", "watched", "step", "error", "message"),
    [
        (False, True, 0, ValueError, "ignore_data_skip=True"),
        (True, False, 0, TypeError, "must return larder.torch.watch"),
        (True, True, 5, larder.StateError, "without LoaderState"),
    ],
)
def test_a_run_that_could_not_resume_exactly(transformers, skips, watched, step, error, message):
    """Rule: a set-up that would repeat or lose items is refused when training begins."""
    loader = loader_of(dataset_of())
    with pytest.raises(error, match=message):
        transformers.LoaderState().on_train_begin(
            SimpleNamespace(ignore_data_skip=skips),
            at(step),
            None,
            train_dataloader=watch(loader) if watched else loader,
        )
