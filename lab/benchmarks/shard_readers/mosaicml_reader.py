"""An epoch with MosaicML Streaming; the store is ``S3_ENDPOINT_URL``, the arguments are its folder and one for shards."""

import sys

import streaming
from data import BATCH, WORKERS, epoch

if __name__ == "__main__":
    remote, local = sys.argv[1:]
    dataset = streaming.StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=BATCH)
    for stream in dataset.streams:
        stream._downloader.clean_up()  # findings/mosaicml-workers-share-a-connection.sh
    loader = streaming.StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=WORKERS,
        collate_fn=lambda batch: [(of["image"], of["label"]) for of in batch],
    )
    epoch(loader)
