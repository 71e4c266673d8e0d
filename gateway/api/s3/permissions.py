"""The gateway's own authorization: allow-lists and read-only keys, checked on hits and misses alike.

The origin decides everything else. An allow-list holds globs over ``bucket/key``; it covers a request about a whole bucket if it
covers every key that the request may reveal or touch.
"""

from __future__ import annotations

from urllib.parse import parse_qs, unquote

from gateway.api.s3.call import S3Call, check_bucket
from gateway.model.errors import S3Error
from gateway.model.keys import Principal
from gateway.model.s3.query import PAGING, require_valid_escapes

_READS = ("GET", "HEAD")
_HARMLESS_OF_A_BUCKET = frozenset({"location", "versioning", "x-id"})
_OF_A_LISTING = frozenset(name.decode() for name in PAGING) | {"uploads", "versions"}


def check(call: S3Call) -> None:
    """Refuse a request that the credential does not allow.

    Raises:
        S3Error: AccessDenied, naming the restriction.
    """
    principal = call.auth.principal
    if principal.read_only and call.request.method not in _READS:
        raise S3Error("AccessDenied", explain="This access key is read-only.")
    if not principal.allow:
        return
    for key in call.keys:
        require(principal, key.path)
    if call.key is None and not _covers_bucket_request(principal, call):
        raise S3Error("AccessDenied", explain="The allow-list of this access key does not cover this request.")
    source = call.request.fields.get(b"x-amz-copy-source")
    if source is not None:
        for path in _copy_source_paths(source):
            require(principal, path)


def require(principal: Principal, path: str) -> None:
    """Refuse a path that the allow-list does not cover.

    Raises:
        S3Error: AccessDenied.
    """
    if not principal.may_touch(path):
        raise S3Error("AccessDenied", explain="The allow-list of this access key does not cover this key.")


def _copy_source_paths(source: bytes) -> set[str]:
    """``bucket/key`` from an x-amz-copy-source header, which may start with a slash and end with a versionId.

    Returns two paths if stores differ on how to read it, because of a bare "+".

    Raises:
        S3Error: AccessDenied for a source that stores could read as different objects.
    """
    path, question, version = source.decode("utf-8", "replace").partition("?")
    if question and (not version.startswith("versionId=") or "&" in version):
        raise S3Error(
            "AccessDenied",
            explain="A copy source must be bucket/key or bucket/key?versionId=ID, with ? in keys as %3F.",
        )
    require_valid_escapes(source)
    paths = {unquote(spelling).lstrip("/") for spelling in (path, path.replace("+", " "))}
    for bucket in {path.partition("/")[0] for path in paths}:
        check_bucket(bucket)
    return paths


def _covers_bucket_request(principal: Principal, call: S3Call) -> bool:
    bucket = call.bucket
    if not bucket:
        return principal.may_list("")
    if call.request.method == "POST" and "delete" in call.names:
        return True  # each key of a batch delete is checked when its document is read
    if call.request.method in _READS:
        if call.request.method == "HEAD" or call.names & _HARMLESS_OF_A_BUCKET == call.names != frozenset():
            return any(pattern == "**" or pattern.startswith(f"{bucket}/") for pattern in principal.allow)
        prefixes = [""]
        if call.names <= _OF_A_LISTING:
            # Check all of them: stores differ on which one counts.
            prefixes = parse_qs(call.query, keep_blank_values=True).get("prefix", prefixes)
        return all(principal.may_list(f"{bucket}/{prefix}") for prefix in prefixes)
    return any(pattern in ("**", f"{bucket}/**") for pattern in principal.allow)
