"""Larder for PyTorch: datasets at a gateway, for torch's `DataLoader`.

`CachedDataset` yields whole batches, each item exactly once per epoch over all ranks and workers. `CachedMapDataset` is a
map-style dataset, for any sampler. `watch` wraps a loader that has workers, so that it can be saved and resumed within an epoch.
"""

from larder.planner import merge_states
from larder.torch.dataset import CachedDataset, DatasetOptions
from larder.torch.mapped import CachedMapDataset, MapOptions
from larder.torch.samples import Item
from larder.torch.watched import WatchedLoader, watch

__all__ = [
    "CachedDataset",
    "CachedMapDataset",
    "DatasetOptions",
    "Item",
    "MapOptions",
    "WatchedLoader",
    "merge_states",
    "watch",
]
