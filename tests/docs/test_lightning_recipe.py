"""The recipe for Lightning, with the package: every item once per epoch, also after a resume."""

from pathlib import Path

import pytest

from tests.docs.recipes import TIMEOUT, run_recipe

pytestmark = pytest.mark.timeout(TIMEOUT + 30)

BEFORE = """
import lightning


def number_of(item):
    return torch.tensor(float(item.index))


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, number):
        self.seen += batch.int().tolist()
        return self.layer(batch[:, None] / ITEMS).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


model, images = Model(), CachedDataset(ENDPOINT, "images", batch_size=BATCH, transform=number_of)
"""
AFTER = """
assert Counter(model.seen) == Counter(list(range(ITEMS)) * 3)


def trained(resume, **limit):
    global images
    model, images = Model(), CachedDataset(ENDPOINT, "images", batch_size=BATCH, transform=number_of)
    saving = lightning.pytorch.callbacks.ModelCheckpoint("again", "at-{step}", every_n_train_steps=11, save_top_k=-1)
    trainer = lightning.Trainer(callbacks=[saving], use_distributed_sampler=False, logger=False, **limit)
    trainer.fit(model, datamodule=Digits(), ckpt_path=resume)
    return model.seen


first = trained(None, max_steps=11)
assert len(first) == ITEMS + 3 * BATCH
rest = trained("again/at-step=11.ckpt", max_epochs=3)
assert Counter(first + rest) == Counter(list(range(ITEMS)) * 3)
"""


def test_every_item_once_per_epoch_and_after_a_resume(tmp_path: Path):
    """A run that stops in its second epoch and resumes from ModelCheckpoint's file trains on exactly the remaining items."""
    run_recipe("class Digits(", tmp_path, BEFORE, AFTER)
