#!/usr/bin/env bash
# cloudpathlib downloads an object again if its time is later than that of the local copy, and S3's times are of whole seconds: an
# object that is overwritten in the second of its first version is read as that version for good, even if it is longer, or has
# another ETag. Expected: the ETag or at least the size compared too, as a HEAD request, which is made each time, returns all three.
# Seen with cloudpathlib 0.26.0 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'cloudpathlib[s3]==0.26.0' 'boto3==1.44.8' 'moto[server]==5.2.5'
"$home/v/bin/python" - <<'END'
import time
import boto3
from cloudpathlib import S3Client
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
session = boto3.Session("key", "secret", region_name="us-east-1")
client = S3Client(boto3_session=session, endpoint_url=endpoint)
s3 = client.client
s3.create_bucket(Bucket="bucket")
path = client.CloudPath("s3://bucket/latest")

def put(body):
    s3.put_object(Bucket="bucket", Key="latest", Body=body)
    return s3.head_object(Bucket="bucket", Key="latest")["LastModified"]

while True:
    first, read_first, second = put(b"step 9"), path.read_bytes(), put(b"step 10")
    if first == second:
        break
time.sleep(2)
read_second, size = path.read_bytes(), path.stat().st_size
third, read_third = put(b"step 11"), path.read_bytes()
print(read_first, read_second, size, read_third)
assert (read_first, read_second, size) == (b"step 9", b"step 9", 7)
assert third > second and read_third == b"step 11"
server.stop()
END
