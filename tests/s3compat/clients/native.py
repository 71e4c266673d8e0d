"""obstore (Rust object_store) and pyarrow (the AWS SDK for C++)."""

# ruff: noqa: D102 - the base class says what each operation is

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import obstore
import pyarrow
from obstore.store import S3Store
from pyarrow import fs

from tests.s3compat.clients.base import PART, Access, Client


class Obstore(Client):
    """obstore: the store of delta-rs, and of most that is written in Rust."""

    name = "obstore"
    package = "obstore"

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        self._stores: dict[str, S3Store] = {}

    def _store(self, bucket: str) -> S3Store:
        if bucket not in self._stores:
            # Its timeout is for a whole request, however long its body is, so a busy machine would exceed any short one.
            options: dict[str, object] = {"allow_http": True, "timeout": "1h", "connect_timeout": "60s"}
            if self.access.authority is not None:
                options["root_certificate"] = self.access.authority.read_bytes()
            self._stores[bucket] = S3Store(
                bucket,
                endpoint=self.access.endpoint,
                access_key_id=self.access.key,
                secret_access_key=self.access.secret,
                region=self.access.region,
                virtual_hosted_style_request=False,
                client_options=options,
                retry_config={"max_retries": 0},
            )
        return self._stores[bucket]

    def version(self) -> str:
        return str(obstore.__version__)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        obstore.put(self._store(bucket), key, body, use_multipart=False)

    def get(self, bucket: str, key: str) -> bytes:
        return bytes(obstore.get(self._store(bucket), key).bytes())

    def head(self, bucket: str, key: str) -> int:
        return int(obstore.head(self._store(bucket), key)["size"])

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        return bytes(obstore.get_range(self._store(bucket), key, start=start, end=stop))

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        # A prefix is a directory here.
        batches = obstore.list(self._store(bucket), prefix.rpartition("/")[0])
        return [item["path"] for batch in batches for item in batch]

    def upload(self, bucket: str, key: str, source: Path) -> None:
        obstore.put(self._store(bucket), key, source, use_multipart=True, chunk_size=PART, max_concurrency=4)

    def download(self, bucket: str, key: str, target: Path) -> None:
        store = self._store(bucket)
        size = obstore.head(store, key)["size"]
        starts = list(range(0, size, PART))
        ends = [min(start + PART, size) for start in starts]
        pieces = obstore.get_ranges(store, key, starts=starts, ends=ends)
        target.write_bytes(b"".join(bytes(piece) for piece in pieces))

    def presign_get(self, bucket: str, key: str) -> str:
        return str(obstore.sign(self._store(bucket), "GET", key, timedelta(minutes=5)))

    def presign_put(self, bucket: str, key: str) -> str:
        return str(obstore.sign(self._store(bucket), "PUT", key, timedelta(minutes=5)))

    def copy(self, bucket: str, source: str, target: str) -> None:
        obstore.copy(self._store(bucket), source, target)

    def delete(self, bucket: str, key: str) -> None:
        obstore.delete(self._store(bucket), key)

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        obstore.delete(self._store(bucket), list(keys))

    def close(self) -> None:
        self._stores.clear()


class Pyarrow(Client):
    """pyarrow.fs.S3FileSystem: what pyarrow.dataset and Ray Data read through."""

    name = "pyarrow"
    package = "pyarrow"

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        self._fs = fs.S3FileSystem(
            access_key=access.key,
            secret_key=access.secret,
            endpoint_override=access.address,
            scheme="https" if access.tls else "http",
            region=access.region,
            retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=0),
            allow_delayed_open=True,
            tls_ca_file_path=str(access.authority) if access.authority else None,
        )

    def version(self) -> str:
        return str(pyarrow.__version__)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        with self._fs.open_output_stream(f"{bucket}/{key}") as stream:
            stream.write(body)

    def get(self, bucket: str, key: str) -> bytes:
        with self._fs.open_input_file(f"{bucket}/{key}") as file:
            return bytes(file.read())

    def head(self, bucket: str, key: str) -> int:
        return int(self._fs.get_file_info(f"{bucket}/{key}").size)

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        with self._fs.open_input_file(f"{bucket}/{key}") as file:
            return bytes(file.read_at(stop - start, start))

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        found = self._fs.get_file_info(fs.FileSelector(f"{bucket}/{prefix}".rstrip("/"), recursive=True))
        return [item.path.partition("/")[2] for item in found if item.type is fs.FileType.File]

    def upload(self, bucket: str, key: str, source: Path) -> None:
        self.put(bucket, key, source.read_bytes())

    def download(self, bucket: str, key: str, target: Path) -> None:
        with self._fs.open_input_file(f"{bucket}/{key}") as remote, target.open("wb") as local:
            for start in range(0, remote.size(), PART):
                local.write(remote.read_at(PART, start))

    def copy(self, bucket: str, source: str, target: str) -> None:
        self._fs.copy_file(f"{bucket}/{source}", f"{bucket}/{target}")

    def delete(self, bucket: str, key: str) -> None:
        self._fs.delete_file(f"{bucket}/{key}")

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        self._fs.delete_dir_contents(f"{bucket}/{keys[0].rpartition('/')[0]}")
