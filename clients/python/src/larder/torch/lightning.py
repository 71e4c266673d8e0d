"""Importance in a Lightning run: the callback updates the sampler after each mini-batch and saves it in checkpoints.

::

    class Model(lightning.LightningModule):
        def training_step(self, batch, number):
            ids, (images, labels) = batch
            losses = self.losses_of(self(images), labels)
            return {"loss": losses.mean(), "ids": ids, "losses": losses.detach()}

    lightning.Trainer(callbacks=[ImportanceCallback(sampler)], use_distributed_sampler=False)

``use_distributed_sampler=False`` is needed with several ranks: otherwise Lightning divides the sampler's items among ranks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from larder.torch.importance import ImportanceSampler

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:
        Callback = object


class ImportanceCallback(Callback):  # type: ignore[misc]
    """Updates a sampler with the training step's result. Needs the package ``lightning``, or ``pytorch_lightning``.

    Args:
        sampler: of the training loader.
    """

    def __init__(self, sampler: ImportanceSampler) -> None:
        self._sampler = sampler

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning.

        Raises:
            ValueError: Lightning would divide the sampler's items among the ranks again.
        """
        connector = getattr(trainer, "_accelerator_connector", None)
        if getattr(trainer, "world_size", 1) > 1 and getattr(connector, "use_distributed_sampler", False):
            raise ValueError(
                "an ImportanceSampler divides the items among ranks itself: make the Trainer with use_distributed_sampler=False"
            )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called by Lightning with the training step's result, a dictionary with ``ids`` and ``losses``.

        Raises:
            ValueError: the training step returned something else.
        """
        if not isinstance(outputs, Mapping) or not {"ids", "losses"} <= outputs.keys():
            raise ValueError(
                'with an ImportanceCallback, training_step returns {"loss": ..., "ids": ids, "losses": one per sample}'
            )
        self._sampler.update(outputs["ids"], outputs["losses"])

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state, for the checkpoint."""
        return self._sampler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the sampler from a checkpoint."""
        self._sampler.load_state_dict(state_dict)
