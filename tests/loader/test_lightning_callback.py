"""The Lightning callback, called as Lightning calls it; the package itself is not needed."""

from types import SimpleNamespace

import pytest
import torch

from larder.torch import ImportanceSampler


@pytest.fixture
def made():
    """Makes a sampler of ten items with its callback.

    Lightning, if installed, takes seconds to import: the process that runs this module does, not all that collect it.
    """
    from larder.torch.lightning import ImportanceCallback

    def make():
        sampler = ImportanceSampler(range(10), unseen=0.2, batch_size=5)
        return sampler, ImportanceCallback(sampler)

    return make


def test_a_batch_updates_the_sampler(made):
    """Rule: ``ids`` and ``losses`` returned by the training step are an update."""
    sampler, callback = made()
    for number, ids in enumerate(sampler):
        outputs = {"loss": torch.tensor(0.5), "ids": torch.tensor(ids), "losses": torch.rand(5)}
        callback.on_train_batch_end(None, None, outputs, None, number)
    assert (sampler.stats()["updated"], sampler.stats()["known"]) == (10, 1.0)


@pytest.mark.parametrize("outputs", [None, torch.tensor(0.5), {"loss": torch.tensor(0.5)}, {"losses": torch.ones(5)}])
def test_a_step_that_returns_something_else(made, outputs):
    """Rule: the error for a training step without ids and losses names the values to return."""
    with pytest.raises(ValueError, match="training_step returns"):
        made()[1].on_train_batch_end(None, None, outputs, None, 0)


def test_checkpoints_have_the_sampler(made):
    """Rule: a restored callback continues the sampler's epoch."""
    sampler, callback = made()
    first = next(iter(sampler))
    sampler.update(first, torch.rand(5))
    resumed, other = made()
    other.load_state_dict(callback.state_dict())
    assert sorted(first + [item for ids in resumed for item in ids]) == list(range(10))


@pytest.mark.parametrize(("world", "divides", "refused"), [(1, True, False), (2, False, False), (2, True, True)])
def test_a_trainer_that_divides_again(made, world, divides, refused):
    """Rule: with several ranks, Lightning must not divide the sampler's items once more."""
    trainer = SimpleNamespace(world_size=world, _accelerator_connector=SimpleNamespace(use_distributed_sampler=divides))
    if not refused:
        made()[1].on_train_start(trainer, None)
        return
    with pytest.raises(ValueError, match="use_distributed_sampler=False"):
        made()[1].on_train_start(trainer, None)
