"""Pipelines with PyTorch: tensors as elements, and the stock `DataLoader`."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import larder
from larder.base.errors import ElementUnstorable
from larder.pipelines import Pipeline
from larder.pipelines.elements import decode, encode
from larder.testing import MemorySource
from larder.torch import Item, PipelineDataset
from tests.pipelines.steps import refusal

TYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


def pipeline_of(items: int = 103, **options: Any) -> Pipeline:
    """A pipeline over so many items in memory, each its own number as text."""
    return larder.pipeline("numbers", **{"workers": 0, "source": MemorySource(items), **options})


def tensor(item: Item) -> dict[str, Any]:
    """The item's number as tensor, array and number."""
    value = int(bytes(item.data))
    return {"t": torch.full((2, 2), value), "a": np.full(3, value, np.float32), "n": value}


def with_noise(element: dict[str, Any]) -> dict[str, Any]:
    """The element with random numbers of PyTorch."""
    return {**element, "noise": torch.rand(2)}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("copy", [False, True])
def test_tensors_come_back_as_they_were(dtype: torch.dtype, copy: bool) -> None:
    """Type, shape and values survive, of transposed, empty and single tensors too."""
    for value in (torch.ones(3, 4).t(), torch.zeros(0, 2), torch.tensor(3.0)):
        given = value.to(dtype)
        found = decode(bytearray(encode(given)), copy=copy)
        assert (found.dtype, found.shape) == (dtype, given.shape)
        assert torch.equal(found, given)


def test_a_tensor_that_needs_gradients_is_stored_without() -> None:
    """Elements are data."""
    assert not decode(encode(torch.ones(2, requires_grad=True))).requires_grad


def test_a_sparse_tensor_is_refused() -> None:
    """A sparse tensor is refused, and the message describes the supported tensors."""
    with pytest.raises(ElementUnstorable, match="tensors are dense, and on the CPU"):
        encode(torch.eye(2).to_sparse())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_gives_tensors(workers: int) -> None:
    """The stock loader turns arrays into tensors; every element comes once in each epoch, with any number of input workers."""
    pipeline = pipeline_of(seed=1, workers=workers).map(tensor).map(with_noise).batch(8)
    loader = DataLoader(PipelineDataset(pipeline), batch_size=None)
    for _ in range(2):
        batches = list(loader)
        assert Counter(value for batch in batches for value in batch["n"].tolist()) == Counter(range(103))
        assert batches[0]["t"].shape == (8, 2, 2)
        assert isinstance(batches[0]["a"], torch.Tensor)
    pipeline.close()


def test_random_numbers_of_torch_are_the_elements_own() -> None:
    """They are the same in a worker process and here, and the training process's generator is left alone."""
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    here, there = (pipeline_of(20, workers=workers).map(tensor).map(with_noise).batch(20) for workers in (0, 1))
    assert torch.equal(next(iter(here))["noise"], next(iter(there))["noise"])
    assert torch.equal(torch.rand(1), expected)
    there.close()


@pytest.fixture
def distributed() -> Iterator[None]:
    """``torch.distributed`` with this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("distributed")
def test_a_dataset_runs_the_pipeline_that_it_was_given() -> None:
    """Rule: with the ranks of ``torch.distributed`` it is the same pipeline: its epoch, its state, and its counts."""
    pipeline = pipeline_of().map(tensor).batch(8)
    pipeline.set_epoch(7)
    dataset = PipelineDataset(pipeline)
    batches = iter(DataLoader(dataset, batch_size=None))
    came = list(islice(batches, 3))
    assert (pipeline.ranks, pipeline.epoch) == ((0, 1), 7)
    resumed = pipeline_of().map(tensor).batch(8)
    resumed.load_state_dict(pipeline.state_dict())
    rest = list(DataLoader(PipelineDataset(resumed), batch_size=None))
    assert Counter(value for batch in came + rest for value in batch["n"].tolist()) == Counter(range(103))
    assert (resumed.epoch, resumed.stats()["batches"]) == (8, len(rest))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stateful_dataloader_resumes() -> None:
    """torchdata saves and loads the state through the dataset."""
    loader = StatefulDataLoader(PipelineDataset(pipeline_of().map(tensor).batch(8)), batch_size=None)
    came = list(islice(iter(loader), 5))
    state = json.loads(json.dumps(loader.state_dict()))
    again = StatefulDataLoader(PipelineDataset(pipeline_of().map(tensor).batch(8)), batch_size=None)
    again.load_state_dict(state)
    numbers = [value for batch in [*came, *again] for value in batch["n"].tolist()]
    assert Counter(numbers) == Counter(range(103))


@pytest.mark.filterwarnings("ignore")  # of Lightning, on which checkpoints and loaders it would like better
@pytest.mark.parametrize("loader", [None, StatefulDataLoader], ids=["pipeline", "loader"])
def test_lightning_resumes_from_its_checkpoint(tmp_path: Path, loader: Any) -> None:
    """Every element once in each epoch and in its order, over a resume in the middle of one: Lightning, which knows how many
    batches there are, fetches none ahead, and never asks for the one after the last."""
    import lightning

    class Model(lightning.LightningModule):
        """Records its input."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(2, 1), defaultdict[int, list[int]](list)

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen[self.current_epoch] += torch.as_tensor(batch["n"]).tolist()
            return self.layer(torch.as_tensor(batch["t"]).float()).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trained(resume: Path | None, **limit: int) -> dict[int, list[int]]:
        model, pipeline = Model(), pipeline_of().map(tensor).batch(8)
        data = pipeline if loader is None else loader(PipelineDataset(pipeline), batch_size=None)
        saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=18, save_top_k=-1)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        lightning.Trainer(callbacks=[saving], **quiet, **limit).fit(model, data, ckpt_path=resume)
        return model.seen

    first, rest = trained(None, max_steps=18), trained(tmp_path / "step=18.ckpt", max_epochs=3)
    expected = pipeline_of().map(tensor).batch(8)
    for epoch in range(3):
        order = [value for batch in expected for value in batch["n"].tolist()]
        assert first[epoch] + rest[epoch] == order


def test_dataloader_workers_are_refused() -> None:
    """DataLoader workers are refused, because each would read the whole pipeline; the error names the setting to use."""
    loader = DataLoader(PipelineDataset(pipeline_of().map(tensor).batch(8)), batch_size=None, num_workers=1)
    with pytest.raises(ValueError, match="give the DataLoader num_workers=0"):
        next(iter(loader))


def test_a_process_that_may_not_start_others_is_told_so() -> None:
    """Input workers cannot be children of a daemonic process."""
    context = multiprocessing.get_context("forkserver")
    queue = context.SimpleQueue()
    process = context.Process(target=refusal, args=(queue,), daemon=True)
    process.start()
    assert "or the pipeline workers=0" in queue.get()
    process.join()


def test_a_lambda_is_sent_by_cloudpickle() -> None:
    """Functions of notebooks reach worker processes if cloudpickle is installed."""
    offset = 1000
    pipeline = pipeline_of(20, workers=1).map(lambda item: int(bytes(item.data)) + offset)
    assert sorted(pipeline) == list(range(1000, 1020))
    pipeline.close()
