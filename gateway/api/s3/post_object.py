"""POST Object: uploads by HTML form, sent to the origin as a PUT.

The body names the key, so the form decides everything that the head decides in other requests: the uploader
(``Authenticator.authenticate_form``), the policy, and the headers of the object. From there it is a PUT like any other:
permissions, write announcements and limits are those of ``forward``.

The length of the file is known only at its end, and S3 requires it at the beginning, so the file is spooled first. A file outside
the policy's content-length-range therefore never reaches the origin.

Source: "POST Object" in the Amazon S3 API reference.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from gateway.api.s3 import permissions
from gateway.api.s3.answer import Answer
from gateway.api.s3.auth import Authenticated, Authenticator
from gateway.api.s3.call import S3Call, decode_key
from gateway.api.s3.classify import refuse_large_metadata
from gateway.api.s3.documents import tags_of
from gateway.api.s3.form import MULTIPART, Form, is_multipart
from gateway.api.s3.forward import Forwarder
from gateway.api.s3.spool import Spool
from gateway.model.errors import S3Error
from gateway.model.holders import HOLDER
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3 import checksums
from gateway.model.s3.post_policy import PostPolicy
from gateway.model.s3.sigv4 import RawHeader, WireRequest
from gateway.model.s3.sigv4_claims import missing_field
from gateway.server.asgi_types import RawHeaders
from gateway.server.refusals import xml_document

_NAMES_OPERATION = frozenset({"x-id"})
_HEADERS: Mapping[str, str] = {
    name: name
    for name in (
        "cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires",
        "x-amz-storage-class", "x-amz-website-redirect-location", "x-amz-object-lock-mode",
        "x-amz-object-lock-retain-until-date", "x-amz-object-lock-legal-hold", "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-aws-kms-key-id", "x-amz-server-side-encryption-bucket-key-enabled",
        "x-amz-server-side-encryption-context", "x-amz-server-side-encryption-customer-algorithm",
        "x-amz-server-side-encryption-customer-key", "x-amz-server-side-encryption-customer-key-md5",
        "x-amz-checksum-algorithm", "x-amz-sdk-checksum-algorithm", *sorted(checksums.KNOWN),
    )
} | {"acl": "x-amz-acl"}  # fmt: skip
"""The PUT header of each supported form field. No other field becomes one: x-amz-copy-source would make it a copy."""

_OF_THE_SIGNATURE = frozenset(
    {"x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature", "x-amz-security-token"}
)
_METADATA = re.compile(r"x-amz-meta-[!#$%&'*+.^_`|~0-9a-z-]+")
_REPLACED = frozenset({b"content-length", b"content-type", b"location"})


def is_form_upload(call: S3Call) -> bool:
    """Whether a POST is an upload by HTML form, or the origin would treat it as one."""
    return is_multipart(call.request) or (call.key is None and not call.names - _NAMES_OPERATION)


def check_form_request(call: S3Call) -> None:
    """Refuse a form upload with an invalid head.

    Raises:
        S3Error: MethodNotAllowed, InvalidArgument, PreconditionFailed.
    """
    if not call.bucket or call.key is not None:
        raise S3Error("MethodNotAllowed")
    if call.auth.presigned or not call.auth.principal.anonymous:
        raise S3Error(
            "InvalidArgument", explain="A form is signed by its fields, not in the Authorization header or the query."
        )
    if call.names - _NAMES_OPERATION:
        raise S3Error("InvalidArgument", "Query String Parameters not allowed on POST requests.")
    if not is_multipart(call.request):
        condition = f"Bucket POST must be of the enclosure-type {MULTIPART}"
        raise S3Error("PreconditionFailed", extra={"Condition": condition})
    if len([name for name, _ in call.request.headers if name == b"content-type"]) > 1:
        raise S3Error("InvalidArgument", explain="The header content-type appears more than once.")


def key_of(call: S3Call, form: Form) -> ObjectKey:
    """The key that a form uploads to, with ``${filename}`` replaced; the key's origin is provisional until the form is verified.

    Raises:
        S3Error: InvalidArgument, KeyTooLongError, InvalidURI.
    """
    if "key" not in form.fields:
        raise missing_field("key")
    key = form.fields["key"].replace("${filename}", form.filename)
    if not key:
        extra = {"ArgumentName": "key", "ArgumentValue": ""}
        raise S3Error("InvalidArgument", "User key must have a length greater than 0.", extra=extra)
    return ObjectKey(call.auth.principal.identity.origin, call.bucket, decode_key(_quoted(key)))


class FormUpload(NamedTuple):
    """A verified form: the equivalent PUT, and its policy."""

    put: S3Call
    policy: PostPolicy | None


class PostObjects:
    """Uploads by HTML form.

    Args:
        authenticator: verifies the signature over the policy.
        forwarder: sends the equivalent PUT.
    """

    def __init__(self, authenticator: Authenticator, forwarder: Forwarder) -> None:
        self._authenticator = authenticator
        self._forwarder = forwarder

    def verify(self, call: S3Call, form: Form, key: ObjectKey, admit: Callable[[Authenticated], None]) -> FormUpload:
        """Verify signature, policy and permissions of a form.

        Args:
            call: the request.
            form: its fields.
            key: of the object.
            admit: called with the signer; may refuse.

        Raises:
            S3Error: what ``authenticate_form``, ``PostPolicy.check`` and ``permissions.check`` raise; MetadataTooLarge;
                InvalidArgument or NotImplemented for a field that cannot be a header.
        """
        now = time.time()
        auth, policy = self._authenticator.authenticate_form(form.fields, now)
        admit(auth)
        if policy is not None:
            policy.check({**form.fields, "key": key.key, "bucket": call.bucket}, now)
        put = _as_put(call, auth, key, form.fields)
        permissions.check(put)
        refuse_large_metadata(put)
        return FormUpload(put, policy)

    async def store(self, call: S3Call, form: Form, upload: FormUpload) -> Answer:
        """Send the file of a verified form to the origin, and answer as the form asks.

        Raises:
            S3Error: BadDigest, EntityTooLarge, EntityTooSmall, InvalidDigest, InvalidRequest, MalformedPOSTRequest; and what a
                PUT raises.
            OriginUnavailable: the origin could not be reached.
        """
        spool = Spool(self._forwarder.spooling.place())
        try:
            length = await self._fill(spool, form, upload.policy)
            request = upload.put.request
            headers = [*request.headers, (b"content-length", b"%d" % length)]
            put = replace(upload.put, request=WireRequest("PUT", request.raw_path, b"", headers, request.scheme))
            answer = await self._forwarder.forward(put, spool.pieces(), Outcome.BYPASS, Reason.NOT_A_READ)
        finally:
            spool.close()
        if answer.status != 200:
            return answer
        if answer.cleanup is not None:
            await answer.cleanup()
        key = upload.put.key
        assert key is not None
        return _success(call, form.fields, key, answer.headers)

    async def _fill(self, spool: Spool, form: Form, policy: PostPolicy | None) -> int:
        spooling = self._forwarder.spooling
        most = min(
            spooling.limit, int(spooling.place().room.most(HOLDER.get())), *([] if policy is None else [policy.most])
        )
        claimed = {name: value.strip() for name, value in form.fields.items() if name in checksums.KNOWN}
        for name, value in claimed.items():
            checksums.check_form(name, value)
        running = {name: checksums.start(name) for name in claimed}
        length = 0
        async for piece in form.file():
            for checksum in running.values():
                checksum.update(piece)
            length += len(piece)
            if length > most:
                raise S3Error("EntityTooLarge", extra={"ProposedSize": str(length), "MaxSizeAllowed": str(most)})
            await spool.write(piece)
        if policy is not None and length < policy.least:
            extra = {"ProposedSize": str(length), "MinSizeAllowed": str(policy.least)}
            raise S3Error("EntityTooSmall", extra=extra)
        for name, value in claimed.items():
            checksums.check_value(name, value, running[name])
        return length


def _quoted(key: str) -> bytes:
    return quote(key, safe="/-_.~").encode()


def _as_put(call: S3Call, auth: Authenticated, key: ObjectKey, fields: Mapping[str, str]) -> S3Call:
    """The PUT equivalent to a form. A browser's Origin is kept, so that the origin adds its CORS headers."""
    raw_key = _quoted(key.key)
    headers = _headers(fields)
    origin = call.request.fields.get(b"origin")
    if origin is not None:
        headers.append((b"origin", origin))
    request = WireRequest("PUT", b"/%b/%b" % (key.bucket.encode(), raw_key), b"", headers, call.request.scheme)
    key = key._replace(origin=auth.principal.identity.origin)
    return S3Call(request, auth, key.bucket, raw_key, key, "", frozenset())


def _headers(fields: Mapping[str, str]) -> list[RawHeader]:
    headers = [] if "content-type" in fields else [(b"content-type", b"binary/octet-stream")]
    for field, value in fields.items():
        name = _HEADERS.get(field, field if _METADATA.fullmatch(field) else "")
        if field == "tagging":
            name, value = "x-amz-tagging", tags_of(value.encode())
        if not name:
            if field.startswith("x-amz-") and field not in _OF_THE_SIGNATURE:
                raise S3Error("NotImplemented", explain=f"Forms with the field {field[:64]!r} are not supported.")
            continue
        if any(character in value for character in "\r\n\0"):
            raise S3Error(
                "InvalidArgument", explain=f"The field {field[:64]!r} has characters that are not allowed in a header."
            )
        headers.append((name.encode(), value.strip().encode()))
    return headers


def _success(call: S3Call, fields: Mapping[str, str], key: ObjectKey, origin_headers: RawHeaders) -> Answer:
    headers = [pair for pair in origin_headers if pair[0].lower() not in _REPLACED]
    etag = next((value.decode("latin-1") for name, value in headers if name.lower() == b"etag"), "")
    redirect = _redirect(fields, key, etag)
    if redirect is not None:
        headers += [(b"location", redirect.encode()), (b"content-length", b"0")]
        return Answer(303, headers, b"", Outcome.BYPASS, Reason.NOT_A_READ)
    location = _location(call, key)
    headers.append((b"location", location.encode("latin-1")))
    status = {"200": 200, "201": 201}.get(fields.get("success_action_status", ""), 204)
    content = b""
    if status == 201:
        elements = {"Location": location, "Bucket": key.bucket, "Key": key.key, "ETag": etag}
        content = xml_document("PostResponse", elements)
        headers.append((b"content-type", b"application/xml"))
    if status != 204:
        headers.append((b"content-length", b"%d" % len(content)))
    return Answer(status, headers, content, Outcome.BYPASS, Reason.NOT_A_READ, length=len(content))


def _location(call: S3Call, key: ObjectKey) -> str:
    """The address of the uploaded object, virtual-hosted or path style as the form was posted."""
    request = call.request
    host = (request.fields.get(b"host") or b"").decode("latin-1")
    bucket = f"/{key.bucket}" if request.raw_path.strip(b"/") else ""
    return f"{request.scheme}://{host}{bucket}/{_quoted(key.key).decode()}"


def _redirect(fields: Mapping[str, str], key: ObjectKey, etag: str) -> str | None:
    """The redirect that a form requests; ``None`` without one, or if it is not a URL (S3 ignores it then)."""
    address = fields.get("success_action_redirect") or fields.get("redirect") or ""
    if not address.isascii() or not address.isprintable() or " " in address:
        return None
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return None
    query = f"bucket={quote(key.bucket, safe='')}&key={quote(key.key, safe='')}&etag={quote(etag, safe='')}"
    return parts._replace(query=f"{parts.query}&{query}" if parts.query else query).geturl()
