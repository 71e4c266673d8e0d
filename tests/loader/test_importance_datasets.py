"""An ImportanceSampler takes any dataset with a length and indices, and refuses loaders that choose their order themselves."""

from collections import Counter

import pytest
from torch.utils.data import ConcatDataset, Subset

import larder
from larder.testing import MemorySource
from larder.torch import ImportanceSampler, PipelineDataset
from tests.loader.making import BATCH, ENDPOINT, N, dataset_of, index_of, map_of, whole


@pytest.mark.parametrize("kind", ["CachedDataset", "Loader", "Mix", "Pipeline", "PipelineDataset"])
def test_a_dataset_without_indices_is_refused(kind):
    """Rule: a loader that chooses the order itself has no indices, whatever its length; the message names what has."""
    source, pipeline = MemorySource(N), larder.pipeline("train", source=MemorySource(N)).batch(BATCH)
    datasets = {
        "CachedDataset": dataset_of(),
        "Loader": larder.Loader(ENDPOINT, "train", batch_size=BATCH, source=source),
        "Mix": larder.Mix(["a", "b"]),
        "Pipeline": pipeline,
        "PipelineDataset": PipelineDataset(pipeline),
    }
    with pytest.raises(
        TypeError, match=f"a {kind} does not have: use a larder.torch.CachedMapDataset with a transform"
    ):
        ImportanceSampler(datasets[kind], unseen=0.1)


def test_any_dataset_with_indices_is_sampled():
    """Rule: a list, or another library's dataset over a `CachedMapDataset`, is sampled by its own indices."""
    for dataset in (
        list(range(N)),
        Subset(map_of(transform=index_of), range(N)),
        ConcatDataset([map_of(50), map_of(N - 50)]),
    ):
        assert Counter(ImportanceSampler(dataset, unseen=0.5)) == whole()
