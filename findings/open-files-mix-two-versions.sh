#!/usr/bin/env bash
# A file that pyarrow, obstore, smart_open or NVIDIA's multi-storage-client has open for reading mixes two versions of an object
# that is overwritten in the meantime: later reads return the new bytes, as none sends If-Match. In Parquet a row group of the new
# object is then read by the footer of the old one. Expected: an error, as s3fs has (it sends If-Match).
# Seen with pyarrow 25.0.1, obstore 0.12.1, smart_open 9.0.2, multi-storage-client 1.3.1 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'pyarrow==25.0.1' 'obstore==0.12.1' 'smart_open==9.0.2' \
    'multi-storage-client[boto3]==1.3.1' 'boto3==1.44.8' 'moto[server]==5.2.5'
"$home/v/bin/python" - "$home" <<'END'
import os
import boto3
from moto.server import ThreadedMotoServer
import multistorageclient
import obstore
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
store = S3Store("bucket", endpoint=endpoint, region="us-east-1", client_options={"allow_http": True},
                virtual_hosted_style_request=False)
options = {"base_path": "bucket", "endpoint_url": endpoint, "region_name": "us-east-1"}
profile = {"profiles": {"p": {"storage_provider": {"type": "s3", "options": options}}}}
msc = multistorageclient.StorageClient(multistorageclient.StorageClientConfig.from_dict(profile, profile="p"))
opened = {
    "pyarrow": lambda: arrow.open_input_file("bucket/object"),
    "obstore": lambda: obstore.open_reader(store, "object"),
    "smart_open": lambda: smart_open.open("s3://bucket/object", "rb", transport_params={"client": s3}),
    "multi-storage-client": lambda: msc.open("object", "rb", memory_load_limit=0),
}
read = {}
for name, open_object in opened.items():
    s3.put_object(Bucket="bucket", Key="object", Body=b"1" * 8_000_000)
    file = open_object()
    first = bytes(file.read(1))
    s3.put_object(Bucket="bucket", Key="object", Body=b"2" * 8_000_000)
    file.seek(7_000_000)
    read[name] = first + bytes(file.read(1))

def put(value):
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"x": [value] * 2000}), sink, row_group_size=1000)
    s3.put_object(Bucket="bucket", Key="table", Body=sink.getvalue().to_pybytes())

put(1)
table = parquet.ParquetFile(arrow.open_input_file("bucket/table"))
groups = [table.read_row_group(0)["x"][0].as_py()]
put(2)
groups.append(table.read_row_group(1)["x"][0].as_py())
print(read, groups)
assert set(read.values()) == {b"12"}
assert groups == [1, 2]
server.stop()
END
