"""An epoch with Larder; the arguments are the gateway and the digest file of the shards."""

import sys

from data import BATCH, WORKERS, collate, epoch
from torch.utils.data import DataLoader

import larder
from larder.torch import CachedDataset


def pair(item):
    """The files of a sample."""
    members = item.members
    return bytes(members["jpg"]), bytes(members["cls"])


if __name__ == "__main__":
    endpoint, digests = sys.argv[1:]
    with larder.Job(endpoint, "shards", digests, batch_size=BATCH) as job:
        dataset = CachedDataset(endpoint, digests, batch_size=BATCH, transform=pair, collate=collate, job=job)
        epoch(job.watch(DataLoader(dataset, batch_size=None, num_workers=WORKERS)))
