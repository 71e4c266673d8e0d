"""boto3, boto3 on the CRT, aiobotocore and s3fs."""

# ruff: noqa: D102 - the base class says what each operation is

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiobotocore
import awscrt
import boto3
import botocore.session
import s3fs
from aiobotocore.session import get_session
from awscrt.auth import AwsCredentialsProvider
from boto3.s3.transfer import TransferConfig
from s3transfer.crt import BotocoreCRTRequestSerializer, CRTTransferManager, create_s3_crt_client

from tests.s3compat.clients.base import PART, Access, Client, boto3_client, botocore_config

_TRANSFER = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=4)


class Boto3(Client):
    """boto3, with its transfer manager for uploads and downloads in parts."""

    name = "boto3"
    package = "boto3"

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        self.s3 = boto3_client(access)
        self._signer = boto3_client(access, signature_version="s3v4")

    def version(self) -> str:
        return str(boto3.__version__)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=bucket, Key=key, Body=body)

    def get(self, bucket: str, key: str) -> bytes:
        body: bytes = self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body

    def head(self, bucket: str, key: str) -> int:
        return int(self.s3.head_object(Bucket=bucket, Key=key)["ContentLength"])

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        answer = self.s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
        body: bytes = answer["Body"].read()
        return body

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": 1}
        )
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def upload(self, bucket: str, key: str, source: Path) -> None:
        self.s3.upload_file(str(source), bucket, key, Config=_TRANSFER)

    def download(self, bucket: str, key: str, target: Path) -> None:
        self.s3.download_file(bucket, key, str(target), Config=_TRANSFER)

    def presign_get(self, bucket: str, key: str) -> str:
        # SigV2 in the query, which is what botocore still does by default for an endpoint of one's own.
        return str(self.s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}))

    def presign_put(self, bucket: str, key: str) -> str:
        return str(self._signer.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": key}))

    def copy(self, bucket: str, source: str, target: str) -> None:
        self.s3.copy_object(Bucket=bucket, Key=target, CopySource={"Bucket": bucket, "Key": source})

    def delete(self, bucket: str, key: str) -> None:
        self.s3.delete_object(Bucket=bucket, Key=key)

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        answer = self.s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        assert "Errors" not in answer, answer

    def close(self) -> None:
        self.s3.close()
        self._signer.close()


class Boto3Crt(Client):
    """The transfer manager of boto3 on the AWS Common Runtime, as ``preferred_transfer_client="crt"`` chooses it."""

    name = "boto3 (CRT)"
    package = "awscrt"
    retries = True

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        session = botocore.session.Session()
        session.set_credentials(access.key, access.secret)
        self._serializer = BotocoreCRTRequestSerializer(
            session,
            {"endpoint_url": access.endpoint, "region_name": access.region, "config": botocore_config()},
        )
        self._crt = create_s3_crt_client(
            access.region,
            AwsCredentialsProvider.new_static(access.key, access.secret),
            num_threads=1,
            part_size=PART,
            use_ssl=access.tls,
            verify=str(access.authority) if access.authority else None,
        )

    def version(self) -> str:
        return str(awscrt.__version__)

    def _manager(self) -> CRTTransferManager:
        """One for each operation, as in boto3: a download has its name only when its manager is closed."""
        return CRTTransferManager(self._crt, self._serializer)

    def upload(self, bucket: str, key: str, source: Path) -> None:
        with self._manager() as manager:
            manager.upload(str(source), bucket, key).result()

    def download(self, bucket: str, key: str, target: Path) -> None:
        with self._manager() as manager:
            manager.download(bucket, key, str(target)).result()

    def delete(self, bucket: str, key: str) -> None:
        with self._manager() as manager:
            manager.delete(bucket, key).result()


class Aiobotocore(Client):
    """aiobotocore in a separate event loop."""

    name = "aiobotocore"
    package = "aiobotocore"

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        self._runner = asyncio.Runner()
        self._opened = get_session().create_client(
            "s3",
            endpoint_url=access.endpoint,
            aws_access_key_id=access.key,
            aws_secret_access_key=access.secret,
            region_name=access.region,
            verify=str(access.authority) if access.authority else None,
            config=_aio_config(),
        )
        self.s3: Any = self._run(self._opened.__aenter__)

    def _run(self, make: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            return await make(*args, **kwargs)

        return self._runner.run(run())

    async def _read(self, **request: str) -> bytes:
        answer = await self.s3.get_object(**request)
        async with answer["Body"] as stream:
            body: bytes = await stream.read()
        return body

    def version(self) -> str:
        return str(aiobotocore.__version__)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self._run(self.s3.put_object, Bucket=bucket, Key=key, Body=body)

    def get(self, bucket: str, key: str) -> bytes:
        body: bytes = self._run(self._read, Bucket=bucket, Key=key)
        return body

    def head(self, bucket: str, key: str) -> int:
        return int(self._run(self.s3.head_object, Bucket=bucket, Key=key)["ContentLength"])

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        body: bytes = self._run(self._read, Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
        return body

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        answer = self._run(self.s3.list_objects_v2, Bucket=bucket, Prefix=prefix)
        return [item["Key"] for item in answer.get("Contents", [])]

    async def _upload(self, bucket: str, key: str, body: bytes) -> None:
        target = {"Bucket": bucket, "Key": key}
        upload = await self.s3.create_multipart_upload(**target)
        target["UploadId"] = upload["UploadId"]
        parts = await asyncio.gather(
            *(
                self.s3.upload_part(PartNumber=1 + at // PART, Body=body[at : at + PART], **target)
                for at in range(0, len(body), PART)
            )
        )
        listed = [{"PartNumber": number, "ETag": part["ETag"]} for number, part in enumerate(parts, 1)]
        await self.s3.complete_multipart_upload(MultipartUpload={"Parts": listed}, **target)

    def upload(self, bucket: str, key: str, source: Path) -> None:
        self._run(self._upload, bucket, key, source.read_bytes())

    async def _download(self, bucket: str, key: str) -> bytes:
        size = (await self.s3.head_object(Bucket=bucket, Key=key))["ContentLength"]
        ranges = [f"bytes={at}-{min(at + PART, size) - 1}" for at in range(0, size, PART)]
        return b"".join(await asyncio.gather(*(self._read(Bucket=bucket, Key=key, Range=each) for each in ranges)))

    def download(self, bucket: str, key: str, target: Path) -> None:
        target.write_bytes(self._run(self._download, bucket, key))

    def presign_get(self, bucket: str, key: str) -> str:
        return str(self._run(self.s3.generate_presigned_url, "get_object", Params={"Bucket": bucket, "Key": key}))

    def presign_put(self, bucket: str, key: str) -> str:
        return str(self._run(self.s3.generate_presigned_url, "put_object", Params={"Bucket": bucket, "Key": key}))

    def copy(self, bucket: str, source: str, target: str) -> None:
        self._run(self.s3.copy_object, Bucket=bucket, Key=target, CopySource={"Bucket": bucket, "Key": source})

    def delete(self, bucket: str, key: str) -> None:
        self._run(self.s3.delete_object, Bucket=bucket, Key=key)

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        self._run(self.s3.delete_objects, Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})

    def close(self) -> None:
        self._run(self._opened.__aexit__, None, None, None)
        self._runner.close()


def _aio_config() -> Any:
    return aiobotocore.config.AioConfig(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})


class S3fs(Client):
    """s3fs, the file system of fsspec, pandas and dask."""

    name = "s3fs"
    package = "s3fs"

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        self.fs = s3fs.S3FileSystem(
            key=access.key,
            secret=access.secret,
            endpoint_url=access.endpoint,
            client_kwargs={
                "region_name": access.region,
                "verify": str(access.authority) if access.authority else None,
            },
            config_kwargs={"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}},
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self.fs.retries = 1

    def version(self) -> str:
        return str(s3fs.__version__)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.fs.pipe_file(f"{bucket}/{key}", body)

    def get(self, bucket: str, key: str) -> bytes:
        body: bytes = self.fs.cat_file(f"{bucket}/{key}")
        return body

    def head(self, bucket: str, key: str) -> int:
        return int(self.fs.info(f"{bucket}/{key}")["size"])

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        body: bytes = self.fs.cat_file(f"{bucket}/{key}", start=start, end=stop)
        return body

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        return [path.partition("/")[2] for path in self.fs.find(f"{bucket}/{prefix}")]

    def upload(self, bucket: str, key: str, source: Path) -> None:
        self.fs.put_file(str(source), f"{bucket}/{key}", chunksize=PART)

    def download(self, bucket: str, key: str, target: Path) -> None:
        with self.fs.open(f"{bucket}/{key}", "rb", block_size=PART) as remote, target.open("wb") as local:
            while piece := remote.read(PART):
                local.write(piece)

    def presign_get(self, bucket: str, key: str) -> str:
        return str(self.fs.sign(f"{bucket}/{key}"))

    def presign_put(self, bucket: str, key: str) -> str:
        return str(self.fs.sign(f"{bucket}/{key}", client_method="put_object"))

    def copy(self, bucket: str, source: str, target: str) -> None:
        self.fs.cp_file(f"{bucket}/{source}", f"{bucket}/{target}")

    def delete(self, bucket: str, key: str) -> None:
        self.fs.rm_file(f"{bucket}/{key}")

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        self.fs.rm([f"{bucket}/{key}" for key in keys])

    def close(self) -> None:
        self.fs.close_session(self.fs.loop, self.fs.s3)
