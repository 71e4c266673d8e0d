"""Larder for PyTorch: datasets at a gateway, for torch's `DataLoader`.

`CachedDataset` yields whole batches, each item exactly once per epoch over all ranks and workers. `CachedMapDataset` is a
map-style dataset, for any sampler; `ImportanceSampler` is a sampler that prefers important items. `PipelineDataset` has the
batches of a `larder.pipeline`. `watch` wraps a loader that has workers, so that it can be saved and resumed within an epoch.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("larder.torch needs PyTorch: pip install 'larder[torch]'", name=error.name) from error

from larder.planner import merge_states
from larder.reading.source import Item
from larder.torch.collation import collate
from larder.torch.dataset import CachedDataset, DatasetOptions
from larder.torch.importance import ImportanceOptions, ImportanceSampler
from larder.torch.losses import per_sample
from larder.torch.mapped import CachedMapDataset, MapOptions
from larder.torch.pipelines import PipelineDataset
from larder.torch.watched import WatchedLoader, watch

__all__ = [
    "CachedDataset",
    "CachedMapDataset",
    "DatasetOptions",
    "ImportanceOptions",
    "ImportanceSampler",
    "Item",
    "MapOptions",
    "PipelineDataset",
    "WatchedLoader",
    "collate",
    "merge_states",
    "per_sample",
    "watch",
]
