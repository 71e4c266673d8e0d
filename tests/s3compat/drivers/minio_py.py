"""Drives minio-py by lines of JSON; see tests/s3compat/clients/driven.py. Runs in an environment that has minio."""

import json
import os
import sys
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import minio
import urllib3
from minio.commonconfig import CopySource
from minio.deleteobjects import DeleteObject

_PART = int(os.environ["PART"])
_WITHIN = timedelta(minutes=5)


class Driver:
    """One method for each operation; the names of their arguments are the protocol's."""

    def __init__(self) -> None:
        scheme, _, address = os.environ["ENDPOINT"].partition("://")
        pool = urllib3.PoolManager(retries=urllib3.Retry(0), ca_certs=os.environ["AUTHORITY"] or None)
        self._s3 = minio.Minio(
            address,
            access_key=os.environ["KEY"],
            secret_key=os.environ["SECRET"],
            region=os.environ["REGION"],
            secure=scheme == "https",
            http_client=pool,
        )

    def version(self) -> str:
        """The library's version."""
        return str(minio.__version__)

    def put(self, bucket: str, key: str, path: str) -> None:
        """Upload in one request."""
        body = Path(path).read_bytes()
        self._s3.put_object(bucket, key, BytesIO(body), len(body))

    def get(self, bucket: str, key: str, path: str) -> None:
        """Read whole."""
        self._read(path, bucket, key)

    def read_range(self, bucket: str, key: str, start: int, stop: int, path: str) -> None:
        """Read a range."""
        self._read(path, bucket, key, offset=start, length=stop - start)

    def _read(self, path: str, *args: Any, **kwargs: Any) -> None:
        answer = self._s3.get_object(*args, **kwargs)
        try:
            Path(path).write_bytes(answer.read())
        finally:
            answer.close()
            answer.release_conn()

    def head(self, bucket: str, key: str) -> int | None:
        """The size."""
        return self._s3.stat_object(bucket, key).size

    def list_keys(self, bucket: str, prefix: str) -> list[str | None]:
        """The keys that begin with a prefix."""
        return [item.object_name for item in self._s3.list_objects(bucket, prefix, recursive=True)]

    def upload(self, bucket: str, key: str, path: str) -> None:
        """Upload in parts."""
        self._s3.fput_object(bucket, key, path, part_size=_PART)

    def download(self, bucket: str, key: str, path: str) -> None:
        """Download to a file."""
        self._s3.fget_object(bucket, key, path)

    def presign_get(self, bucket: str, key: str) -> str:
        """An address to read from."""
        return self._s3.presigned_get_object(bucket, key, _WITHIN)

    def presign_put(self, bucket: str, key: str) -> str:
        """An address to write to."""
        return self._s3.presigned_put_object(bucket, key, _WITHIN)

    def copy(self, bucket: str, source: str, target: str) -> None:
        """Copy at the store."""
        self._s3.copy_object(bucket, target, CopySource(bucket, source))

    def delete(self, bucket: str, key: str) -> None:
        """Delete one object."""
        self._s3.remove_object(bucket, key)

    def delete_many(self, bucket: str, keys: list[str]) -> None:
        """Delete several objects."""
        errors = list(self._s3.remove_objects(bucket, [DeleteObject(key) for key in keys]))
        if errors:
            raise OSError(str(errors))


def main() -> None:
    """Answer until the input ends."""
    driver = Driver()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"value": getattr(driver, asked.pop("operation"))(**asked)}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
