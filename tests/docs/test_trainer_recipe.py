"""The recipe for the Hugging Face Trainer, with the package: every item once per epoch, also after a resume."""

from pathlib import Path

import pytest

from tests.docs.recipes import TIMEOUT, run_recipe

pytestmark = pytest.mark.timeout(TIMEOUT + 30)

BEFORE = """
import transformers


def labelled(item):
    return {"number": torch.tensor([float(item.index)]), "labels": torch.tensor(0.0)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, number, labels=None):
        self.seen += number.flatten().int().tolist()
        return {"loss": self.layer(number / ITEMS).square().mean()}


def new_images():
    return CachedDataset(ENDPOINT, "images", batch_size=64, transform=labelled)


model, images = Model(), new_images()
"""
AFTER = """
assert Counter(model.seen) == Counter(list(range(ITEMS)) * 3)


class Stop(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == 11


def new_images():
    return CachedDataset(ENDPOINT, "images", batch_size=BATCH, transform=labelled)


def trained(resume, *callbacks):
    model = Model()
    arguments = transformers.TrainingArguments(
        "again", num_train_epochs=3, per_device_train_batch_size=BATCH, remove_unused_columns=False, save_steps=11,
        ignore_data_skip=True, report_to="none",
    )
    trainer = CachedTrainer(model, arguments, train_dataset=new_images(), callbacks=[LoaderState(), *callbacks])
    trainer.train(resume_from_checkpoint=resume)
    return model.seen, trainer.state.global_step


first, steps = trained(None, Stop())
assert (len(first), steps) == (ITEMS + 3 * BATCH, 11)
rest, steps = trained("again/checkpoint-11")
assert steps == 24
assert Counter(first + rest) == Counter(list(range(ITEMS)) * 3)
"""


def test_every_item_once_per_epoch_and_after_a_resume(tmp_path: Path):
    """A run that stops in its second epoch and resumes from the checkpoint trains on exactly the remaining items."""
    run_recipe("from larder.torch.transformers", tmp_path, BEFORE, AFTER)
