"""An epoch with WebDataset; the arguments are the addresses of its shards, which ``aws`` reads from ``AWS_ENDPOINT_URL``."""

import sys

import webdataset
from data import BATCH, WORKERS, collate, epoch

if __name__ == "__main__":
    shards = [f"pipe:aws s3 cp {address} -" for address in sys.argv[1:]]
    dataset = webdataset.WebDataset(shards, shardshuffle=100).shuffle(1000).to_tuple("jpg", "cls")
    epoch(webdataset.WebLoader(dataset.batched(BATCH, collation_fn=collate), batch_size=None, num_workers=WORKERS))
