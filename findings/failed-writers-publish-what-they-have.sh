#!/usr/bin/env bash
# A `with` block that writes an object and fails half-way publishes the half in pyarrow, in obstore's file system for fsspec and in
# NVIDIA's multi-storage-client; pyarrow's ParquetWriter even adds a footer, and the short table is read without an error. obstore's
# own open_writer and smart_open publish nothing. Expected: nothing. Seen with pyarrow 25.0.1, obstore 0.12.1, fsspec 2026.9.0,
# smart_open 9.0.2, multi-storage-client 1.3.1 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'pyarrow==25.0.1' 'obstore==0.12.1' 'fsspec==2026.9.0' 'smart_open==9.0.2' \
    'multi-storage-client[boto3]==1.3.1' 'boto3==1.44.8' 'moto[server]==5.2.5'
"$home/v/bin/python" - "$home" <<'END'
import os
import boto3
from moto.server import ThreadedMotoServer
import multistorageclient
import obstore
from obstore.fsspec import FsspecStore
from obstore.store import S3Store
from pyarrow import fs, parquet
import pyarrow
import smart_open

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="us-east-1", AWS_DEFAULT_REGION="us-east-1")
s3 = boto3.client("s3", endpoint_url=endpoint)
s3.create_bucket(Bucket="bucket")
arrow = fs.S3FileSystem(access_key="key", secret_key="secret", endpoint_override=endpoint, region="us-east-1")
plain = {"endpoint": endpoint, "region": "us-east-1", "client_options": {"allow_http": True}, "virtual_hosted_style_request": False}
store = S3Store("bucket", **plain)
options = {"base_path": "bucket", "endpoint_url": endpoint, "region_name": "us-east-1"}
profile = {"profiles": {"p": {"storage_provider": {"type": "s3", "options": options}}}}
msc = multistorageclient.StorageClient(multistorageclient.StorageClientConfig.from_dict(profile, profile="p"))
schema = pyarrow.schema([("x", pyarrow.int64())])
writers = {
    "pyarrow": lambda: arrow.open_output_stream("bucket/pyarrow"),
    "obstore.fsspec": lambda: FsspecStore("s3", **plain).open("bucket/obstore.fsspec", "wb"),
    "msc": lambda: msc.open("msc", "wb"),
    "obstore": lambda: obstore.open_writer(store, "obstore"),
    "smart_open": lambda: smart_open.open("s3://bucket/smart_open", "wb", transport_params={"client": s3}),
}
for open_object in writers.values():
    try:
        with open_object() as file:
            file.write(b"half of it")
            raise InterruptedError
    except InterruptedError:
        pass
try:
    with parquet.ParquetWriter("bucket/parquet", schema, filesystem=arrow) as table:
        table.write_table(pyarrow.table({"x": [1]}, schema=schema))
        raise InterruptedError
except InterruptedError:
    pass
published = [one["Key"] for one in s3.list_objects_v2(Bucket="bucket")["Contents"]]
print(published, parquet.read_table("bucket/parquet", filesystem=arrow).num_rows)
assert published == ["msc", "obstore.fsspec", "parquet", "pyarrow"]
assert parquet.read_table("bucket/parquet", filesystem=arrow).num_rows == 1
server.stop()
END
