"""A pipeline as a dataset for PyTorch's `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from larder.pipelines import Pipeline
from larder.torch.ranks import distributed_ranks, refuse_division, this_worker


class PipelineDataset(IterableDataset[Any]):
    """The batches of a pipeline, for ``DataLoader(dataset, batch_size=None)``, which makes tensors of arrays.

    Ranks are those given to `larder.pipeline`, else those of ``torch.distributed``, else those of the environment.

    Args:
        pipeline: the pipeline; it keeps its own epoch.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __repr__(self) -> str:
        return f"PipelineDataset({self._pipeline!r})"

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline; it gets the ranks of ``torch.distributed`` if it has none."""
        if self._pipeline.ranks is None:
            self._pipeline.ranks = distributed_ranks()
        return self._pipeline

    def __len__(self) -> int:
        """As ``len`` of the pipeline."""
        return len(self.pipeline)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch.

        Raises:
            ValueError: inside a worker of a `DataLoader`, or under a wrapper that divides batches among ranks again.
        """
        if this_worker().inside:
            raise ValueError("a pipeline has input workers of its own: give the DataLoader num_workers=0")
        refuse_division(self.pipeline.current_ranks())
        return iter(self.pipeline)

    def state_dict(self) -> dict[str, Any]:
        """As `larder.Pipeline.state_dict`."""
        return self.pipeline.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `larder.Pipeline.load_state_dict`."""
        self.pipeline.load_state_dict(state)
