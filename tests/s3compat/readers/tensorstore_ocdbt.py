# /// script
# dependencies = ["tensorstore==0.1.86"]
#
# [tool.larder]
# name = "tensorstore (OCDBT)"
# ///
"""TensorStore: a key-value store of OCDBT, as in checkpoints of Orbax, committed by conditional writes of its manifest."""

import tensorstore
from place import BUCKET, ENDPOINT, PREFIX, REGION, content, run, version_of_content

SIZE = 300_000
STORE = {"driver": "s3", "bucket": BUCKET, "path": f"{PREFIX}/", "endpoint": ENDPOINT, "aws_region": REGION}


def opened():
    """The key-value store."""
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": STORE}).result()


def write(version):
    """Write some keys in one commit."""
    store = opened()
    with tensorstore.Transaction() as transaction:
        for number in range(20):
            store.with_transaction(transaction)[f"key-{number}"] = content(version, SIZE)


def read():
    """Read them."""
    store = opened()
    (version,) = {version_of_content(store[f"key-{number}"], SIZE) for number in range(20)}
    return version


run(write, read)
