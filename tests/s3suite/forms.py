"""HTML forms as browsers and ``generate_presigned_post`` send them, and the gateway that they are sent to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

from gateway.model.s3.sigv4 import signing_key
from rig.gateways import Running
from rig.processes import wait_until

BUCKET, PUBLIC = "forms", "public-forms"
TENANT = ("GWA", "gateway-secret-a")
READ_ONLY = ("GWREADS", "gateway-secret-reads")
ALLOWED = ("GWALLOWED", "gateway-secret-allowed")
SESSION = ("GWSESSION", "gateway-secret-session", "gateway-session-token")
BODY = b"bytes of a form\r\n--almost a boundary\r\n\x00\xff"
_BOUNDARY = "----larder-form-boundary"

Fields = list[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    """An answer, header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> tuple[int, str]:
        """Status and S3 code."""
        return self.status, self.element("Code")

    def element(self, name: str) -> str:
        """The text of an element of the document."""
        return fromstring(self.body).findtext(name) or ""


@dataclass(frozen=True)
class Target:
    """A gateway, a client that reaches the origin directly, and the access log."""

    gateway: Running
    direct: Any
    log: Path
    origin: str

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send a POST unchanged."""
        connection = self.gateway.connection()
        try:
            connection.request("POST", path, body, dict(headers))
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post_form(
        self,
        fields: Sequence[tuple[str, str]],
        file: bytes | None = BODY,
        *,
        bucket: str = BUCKET,
        filename: str = "f.bin",
    ) -> Reply:
        """Send a form to a bucket; ``None`` for one without a file."""
        return self.post(f"/{bucket}", encoded(fields, file, filename), {"Content-Type": FORM_TYPE})

    def stored(self, key: str, bucket: str = BUCKET) -> bytes | None:
        """The object at the origin; ``None`` if it does not exist."""
        try:
            body: bytes = self.direct.get_object(Bucket=bucket, Key=key)["Body"].read()
        except self.direct.exceptions.NoSuchKey:
            return None
        return body

    def line_of(self, part: str) -> str:
        """The line of the access log that has this in it; it is written after the answer was sent."""

        def found() -> list[str]:
            return [line for line in self.log.read_text().splitlines() if part in line]

        wait_until(lambda: bool(found()), 30, f"a line of {part!r}")
        return found()[-1]


FORM_TYPE = f"multipart/form-data; boundary={_BOUNDARY}"


def encoded(fields: Sequence[tuple[str, str]], file: bytes | None, filename: str = "f.bin") -> bytes:
    """The body of a form (RFC 7578)."""
    body = b""
    for name, value in fields:
        body += f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    if file is not None:
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
        body += head.encode() + b"Content-Type: text/html\r\n\r\n" + file + b"\r\n"
    return body + f"--{_BOUNDARY}--\r\n".encode()


@dataclass
class Policy:
    """A policy and its form; ``conditions`` are in addition to those for bucket, key and signature.

    ``document`` replaces the whole policy, ``omit`` names parts that the policy must lack.
    """

    key: str = "key"
    fields: Fields = field(default_factory=list)
    conditions: list[Any] = field(default_factory=list)
    bucket: str = BUCKET
    signer: tuple[str, ...] = TENANT
    expires_in: float = 600
    version: int = 4
    omit: tuple[str, ...] = ()
    document: Any = None

    def signed(self) -> Fields:
        """The fields of the form, signed."""
        now = datetime.now(UTC)
        form: Fields = [("key", self.key), *self.fields]
        scope = f"{now:%Y%m%d}/us-east-1/s3/aws4_request"
        proof: Fields = []
        if self.version == 4:
            proof = [
                ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
                ("x-amz-credential", f"{self.signer[0]}/{scope}"),
                ("x-amz-date", f"{now:%Y%m%dT%H%M%SZ}"),
            ]
        conditions: list[Any] = [{"bucket": self.bucket}, ["starts-with", "$key", self.key.partition("$")[0]]]
        conditions += [{name: value} for name, value in [*proof, *self.fields]]
        named = {name for each in self.conditions for name in _named(each)} | set(self.omit)
        conditions = [each for each in conditions if not named & set(_named(each))] + self.conditions
        expiration = f"{now + timedelta(seconds=self.expires_in):%Y-%m-%dT%H:%M:%S.000Z}"
        document = {"expiration": expiration, "conditions": conditions} if self.document is None else self.document
        text = document if isinstance(document, str) else json.dumps(document)
        policy = base64.b64encode(text.encode()).decode()
        form += [*proof, ("policy", policy)]
        secret = self.signer[1]
        if self.version == 2:
            digest = hmac.digest(secret.encode(), policy.encode(), "sha1")
            return [*form, ("AWSAccessKeyId", self.signer[0]), ("signature", base64.b64encode(digest).decode())]
        key = signing_key(secret, f"{now:%Y%m%d}", "us-east-1")
        return [*form, ("x-amz-signature", hmac.new(key, policy.encode(), hashlib.sha256).hexdigest())]


def _named(condition: Any) -> list[str]:
    if isinstance(condition, dict):
        return [name.lower() for name in condition]
    return [str(condition[1]).removeprefix("$").lower()] if len(condition) > 1 else []


def changed(fields: Fields, name: str, value: str | None) -> Fields:
    """The fields with another value for one of them, or without it."""
    kept = [(each, old if each != name else value) for each, old in fields]
    return [(each, new) for each, new in kept if new is not None]
