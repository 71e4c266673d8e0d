"""An epoch with LitData; the arguments are the store's folder, one for chunks, and the store's address."""

import os
import sys

import litdata
from data import BATCH, WORKERS, epoch

if __name__ == "__main__":
    remote, local, endpoint = sys.argv[1:]
    options = {
        "endpoint_url": endpoint,
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    dataset = litdata.StreamingDataset(remote, cache_dir=local, shuffle=True, storage_options=options)
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=WORKERS,
        collate_fn=lambda batch: [
            (bytes(of["image"]), of["label"]) for of in batch
        ],  # findings/litdata-bytes-are-views.sh
    )
    epoch(loader)
