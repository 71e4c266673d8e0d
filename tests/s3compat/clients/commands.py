"""Programs of the command line: AWS CLI, s3cmd, rclone and curl."""

# ruff: noqa: D102 - the base class says what each operation is

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.s3compat.clients.base import Access, Client


class Command(Client):
    """A client that is a program; it is started for each operation."""

    program: ClassVar[str]
    within: ClassVar[float] = 300.0
    """Seconds for a whole run: enough for a busy machine."""
    version_argument: ClassVar[str] = "--version"

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_"))}
        self._environment = {**inherited, "HOME": str(scratch), **self.environment()}

    def environment(self) -> Mapping[str, str]:
        """The program's environment variables."""
        return {}

    def version(self) -> str:
        told = self.run(self.version_argument)
        found = re.search(r"\d+\.\d+(?:\.\d+)?", told)
        assert found is not None, told
        return found[0]

    def run(self, *arguments: str) -> str:
        """Run the program and return its standard output. Raises OSError with its error output."""
        return self.run_raw(*arguments).decode()

    def run_raw(self, *arguments: str) -> bytes:
        """The same, undecoded."""
        command = [self.program, *arguments]
        ran = subprocess.run(command, env=self._environment, capture_output=True, timeout=self.within, check=False)
        if ran.returncode:
            raise OSError(f"{' '.join(command)}: {ran.stderr.decode(errors='replace')[-2000:]}")
        return ran.stdout

    def file(self, body: bytes) -> str:
        """A file with this content."""
        path = self.scratch / "body"
        path.write_bytes(body)
        return str(path)

    def fresh(self) -> Path:
        """A path where nothing is."""
        path = self.scratch / "got"
        path.unlink(missing_ok=True)
        return path


class AwsCli(Command):
    """AWS CLI, version 1."""

    name = "AWS CLI"
    package = "awscli"
    program = "aws"

    def environment(self) -> Mapping[str, str]:
        trusted = {"AWS_CA_BUNDLE": str(self.access.authority)} if self.access.tls else {}
        return {
            "AWS_ACCESS_KEY_ID": self.access.key,
            "AWS_SECRET_ACCESS_KEY": self.access.secret,
            "AWS_DEFAULT_REGION": self.access.region,
            "AWS_ENDPOINT_URL": self.access.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
            **trusted,
        }

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.run("s3api", "put-object", "--bucket", bucket, "--key", key, "--body", self.file(body))

    def get(self, bucket: str, key: str) -> bytes:
        target = self.fresh()
        self.run("s3api", "get-object", "--bucket", bucket, "--key", key, str(target))
        return target.read_bytes()

    def head(self, bucket: str, key: str) -> int:
        return int(json.loads(self.run("s3api", "head-object", "--bucket", bucket, "--key", key))["ContentLength"])

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        target = self.fresh()
        wanted = f"bytes={start}-{stop - 1}"
        self.run("s3api", "get-object", "--bucket", bucket, "--key", key, "--range", wanted, str(target))
        return target.read_bytes()

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        listed = self.run("s3", "ls", "--recursive", "--page-size", "1", f"s3://{bucket}/{prefix}")
        return [line.split(maxsplit=3)[3] for line in listed.splitlines()]

    def upload(self, bucket: str, key: str, source: Path) -> None:
        self.run("s3", "cp", "--quiet", str(source), f"s3://{bucket}/{key}")

    def download(self, bucket: str, key: str, target: Path) -> None:
        self.run("s3", "cp", "--quiet", f"s3://{bucket}/{key}", str(target))

    def presign_get(self, bucket: str, key: str) -> str:
        return self.run("s3", "presign", f"s3://{bucket}/{key}").strip()

    def copy(self, bucket: str, source: str, target: str) -> None:
        self.run("s3", "cp", "--quiet", f"s3://{bucket}/{source}", f"s3://{bucket}/{target}")

    def delete(self, bucket: str, key: str) -> None:
        self.run("s3", "rm", "--quiet", f"s3://{bucket}/{key}")

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        document = json.dumps({"Objects": [{"Key": key} for key in keys]})
        self.run("s3api", "delete-objects", "--bucket", bucket, "--delete", document)


class S3cmd(Command):
    """s3cmd. It retries refused requests for 45 seconds under any settings."""

    name = "s3cmd"
    package = "s3cmd"
    program = "s3cmd"
    retries = True

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        settings = {
            "access_key": access.key,
            "secret_key": access.secret,
            "host_base": access.address,
            "host_bucket": access.address,
            "use_https": access.tls,
            "ca_certs_file": access.authority or "",
            "bucket_location": access.region,
            "multipart_chunk_size_mb": 5,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (scratch / ".s3cfg").write_text("\n".join(["[default]", *lines, ""]))

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.run("put", "--no-progress", "--disable-multipart", self.file(body), f"s3://{bucket}/{key}")

    def get(self, bucket: str, key: str) -> bytes:
        target = self.fresh()
        self.run("get", "--no-progress", f"s3://{bucket}/{key}", str(target))
        return target.read_bytes()

    def head(self, bucket: str, key: str) -> int:
        size = re.search(r"File size:\s+(\d+)", self.run("info", f"s3://{bucket}/{key}"))
        assert size is not None
        return int(size[1])

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        listed = self.run("ls", "--recursive", f"s3://{bucket}/{prefix}")
        return [line.partition(f"s3://{bucket}/")[2] for line in listed.splitlines()]

    def upload(self, bucket: str, key: str, source: Path) -> None:
        self.run("put", "--no-progress", str(source), f"s3://{bucket}/{key}")

    def download(self, bucket: str, key: str, target: Path) -> None:
        self.run("get", "--no-progress", f"s3://{bucket}/{key}", str(target))

    def presign_get(self, bucket: str, key: str) -> str:
        return self.run("signurl", f"s3://{bucket}/{key}", "+300").strip()

    def copy(self, bucket: str, source: str, target: str) -> None:
        self.run("cp", f"s3://{bucket}/{source}", f"s3://{bucket}/{target}")

    def delete(self, bucket: str, key: str) -> None:
        self.run("del", f"s3://{bucket}/{key}")

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        self.run("del", *(f"s3://{bucket}/{key}" for key in keys))


class Rclone(Command):
    """rclone."""

    name = "rclone"
    package = "rclone"
    program = "rclone"
    version_argument = "version"

    def environment(self) -> Mapping[str, str]:
        trusted = {"RCLONE_CA_CERT": str(self.access.authority)} if self.access.tls else {}
        return {
            "RCLONE_CONFIG": str(self.scratch / "no-rclone.conf"),
            "RCLONE_CONFIG_LARDER_TYPE": "s3",
            "RCLONE_CONFIG_LARDER_PROVIDER": "Other",
            "RCLONE_CONFIG_LARDER_ENDPOINT": self.access.endpoint,
            "RCLONE_CONFIG_LARDER_ACCESS_KEY_ID": self.access.key,
            "RCLONE_CONFIG_LARDER_SECRET_ACCESS_KEY": self.access.secret,
            "RCLONE_CONFIG_LARDER_REGION": self.access.region,
            "RCLONE_S3_NO_CHECK_BUCKET": "true",
            "RCLONE_S3_UPLOAD_CUTOFF": "5Mi",
            "RCLONE_S3_CHUNK_SIZE": "5Mi",
            "RCLONE_MULTI_THREAD_CUTOFF": "5Mi",
            "RCLONE_MULTI_THREAD_STREAMS": "2",
            "RCLONE_RETRIES": "1",
            "RCLONE_LOW_LEVEL_RETRIES": "1",
            **trusted,
        }

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.run("copyto", self.file(body), f"larder:{bucket}/{key}")

    def get(self, bucket: str, key: str) -> bytes:
        # Not "cat", which lists the directory besides.
        target = self.fresh()
        self.run("copyto", f"larder:{bucket}/{key}", str(target))
        return target.read_bytes()

    def head(self, bucket: str, key: str) -> int:
        return int(json.loads(self.run("lsjson", "--stat", f"larder:{bucket}/{key}"))["Size"])

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        return self.run_raw("cat", "--offset", str(start), "--count", str(stop - start), f"larder:{bucket}/{key}")

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        listed = self.run("lsf", "--recursive", "--files-only", f"larder:{bucket}/{prefix}")
        return [prefix + line for line in listed.splitlines()]

    def upload(self, bucket: str, key: str, source: Path) -> None:
        self.run("copyto", str(source), f"larder:{bucket}/{key}")

    def download(self, bucket: str, key: str, target: Path) -> None:
        self.run("copyto", f"larder:{bucket}/{key}", str(target))

    def presign_get(self, bucket: str, key: str) -> str:
        return self.run("link", f"larder:{bucket}/{key}").strip()

    def copy(self, bucket: str, source: str, target: str) -> None:
        self.run("copyto", f"larder:{bucket}/{source}", f"larder:{bucket}/{target}")

    def delete(self, bucket: str, key: str) -> None:
        self.run("deletefile", f"larder:{bucket}/{key}")


class Curl(Command):
    """curl with --aws-sigv4."""

    name = "curl --aws-sigv4"
    package = "curl"
    program = "curl"

    def _ask(self, bucket: str, key: str, *arguments: str) -> bytes:
        trusted = ["--cacert", str(self.access.authority)] if self.access.tls else []
        signing = [
            "--aws-sigv4",
            f"aws:amz:{self.access.region}:s3",
            "--user",
            f"{self.access.key}:{self.access.secret}",
        ]
        # S3 wants this header, and only newer versions of curl send it by themselves.
        signing += ["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        url = f"{self.access.endpoint}/{bucket}/{key}"
        return self.run_raw("--silent", "--show-error", "--fail-with-body", *trusted, *signing, *arguments, url)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self._ask(bucket, key, "--upload-file", self.file(body))

    def get(self, bucket: str, key: str) -> bytes:
        return self._ask(bucket, key)

    def head(self, bucket: str, key: str) -> int:
        size = re.search(rb"(?i)content-length: (\d+)", self._ask(bucket, key, "--head"))
        assert size is not None
        return int(size[1])

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        return self._ask(bucket, key, "--range", f"{start}-{stop - 1}")

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        document = self._ask(bucket, f"?list-type=2&prefix={prefix.replace('/', '%2F')}").decode()
        return re.findall(r"<Key>([^<]*)</Key>", document)

    def copy(self, bucket: str, source: str, target: str) -> None:
        self._ask(bucket, target, "--request", "PUT", "--header", f"x-amz-copy-source: /{bucket}/{source}")

    def delete(self, bucket: str, key: str) -> None:
        self._ask(bucket, key, "--request", "DELETE")
