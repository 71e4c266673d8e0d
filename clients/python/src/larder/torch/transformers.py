"""The state of the loader in the checkpoints of a Hugging Face Trainer, so that a resume delivers exactly the rest of its epoch.

::

    class CachedTrainer(transformers.Trainer):
        def get_train_dataloader(self):
            return watch(DataLoader(self.train_dataset, batch_size=None, num_workers=2))

    arguments = transformers.TrainingArguments("out", remove_unused_columns=False, ignore_data_skip=True, save_steps=100)
    trainer = CachedTrainer(model, arguments, train_dataset=dataset, callbacks=[LoaderState()])
    trainer.train(resume_from_checkpoint=...)

The Trainer keeps the state in ``trainer_state.json``, which the first rank writes: the states of all ranks are merged, and a
checkpoint resumes with any number of ranks. ``ignore_data_skip=True`` is needed: otherwise the Trainer would skip the same
batches a second time.
"""

from __future__ import annotations

from typing import Any

from torch import distributed

from larder.base.errors import StateError
from larder.planner import merge_states
from larder.torch.ranks import distributed_ranks
from larder.torch.watched import WatchedLoader

try:
    from transformers.trainer_callback import ExportableState, TrainerCallback
except ImportError:
    ExportableState = TrainerCallback = object


class LoaderState(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Saves the state of a watched loader in each checkpoint, and restores it. Needs the package ``transformers``.

    Attributes:
        saved: the latest state, of all ranks.
    """

    def __init__(self) -> None:
        self.saved: dict[str, Any] | None = None
        self._loader: WatchedLoader | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """Called by the Trainer, after it has read a checkpoint.

        Raises:
            ValueError: the Trainer would skip batches itself.
            TypeError: its loader is not watched.
            StateError: the checkpoint has no state of a loader, or one of another dataset.
        """
        loader = of_trainer.get("train_dataloader")
        if not args.ignore_data_skip:
            raise ValueError("the loader resumes where it was: give the TrainingArguments ignore_data_skip=True")
        if not isinstance(loader, WatchedLoader):
            raise TypeError(
                f"get_train_dataloader must return larder.torch.watch(loader), not a {type(loader).__name__}"
            )
        self._loader = loader
        if not state.global_step:
            return
        # Not by the Trainer's own restoring of callbacks, which is off by default and would restore a stop as well.
        kept = state.stateful_callbacks.get(type(self).__name__) or {"attributes": {}}
        if (saved := kept["attributes"].get("saved")) is not None:
            loader.load_state_dict(saved)
        else:
            raise StateError("the checkpoint has no state of the loader: it was saved without LoaderState()")

    def on_step_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """Called by the Trainer on all ranks, before a checkpoint if ``control`` says so."""
        self._agree(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """As ``on_step_end``."""
        self._agree(control)

    def _agree(self, control: Any) -> None:
        """Agree on the state that the first rank will save."""
        if not control.should_save or self._loader is None:
            return
        mine = self._loader.state_dict()
        ranks = distributed_ranks()
        if ranks is None or ranks.world == 1:
            self.saved = mine
            return
        states: list[dict[str, Any]] = [{}] * ranks.world
        distributed.all_gather_object(states, mine)
        self.saved = merge_states(states)

    def state(self) -> dict[str, Any]:
        """The state for the Trainer's checkpoint."""
        return {"args": {}, "attributes": {"saved": self.saved}}
