"""Decides which requests the cache may answer, and which keys a request writes.

Only a plain GET or HEAD of the current object is answered from the cache. A request with any other query parameter or header
goes to the origin, and an unknown parameter never turns into the plain operation: ``DELETE /key?tagging`` must not delete the
object, and neither must ``DELETE /key?taging``.
"""

from __future__ import annotations

from gateway.api.s3.call import S3Call, parameter
from gateway.model.errors import S3Error
from gateway.model.outcomes import Reason
from gateway.model.s3.conditions import cache_directives
from gateway.model.s3.query import PAGING
from gateway.model.s3.request_headers import EXPECTED_OWNER, FOR_THE_GATEWAY, METADATA, PAYER, REQUESTER

# x-id repeats the operation in the query; newer SDKs send it, and it changes nothing.
_MEANINGLESS = frozenset({"x-id"})

_OF_A_LISTING = frozenset(name.decode() for name in PAGING) | {"versions"}
MAX_METADATA = 2048
_AMZ = b"x-amz-"
_PREFLIGHT = b"access-control-request-"

_SAFE_AMZ = FOR_THE_GATEWAY | {b"x-amz-checksum-mode", b"x-amz-sdk-checksum-algorithm", EXPECTED_OWNER}
"""``x-amz-*`` headers that need not change the answer; ``about_bucket.py`` handles the expected owner."""

_WRITE_PARAMETERS = frozenset(
    {
        "acl", "tagging", "retention", "legal-hold", "torrent", "restore", "select", "select-type", "uploads", "uploadId",
        "partNumber", "versionId", "attributes", "delete", "policy", "cors", "lifecycle", "versioning", "encryption",
        "website", "logging", "notification", "replication", "requestPayment", "accelerate", "publicAccessBlock",
        "ownershipControls", "object-lock", "inventory", "analytics", "metrics", "intelligent-tiering", "id", "append",
        "position", "x-id", "session", "abac", "metadataConfiguration", "metadataTable", "metadataInventoryTable",
        "metadataJournalTable", "metadataAnnotationTable",
    }
)  # fmt: skip

# A store that does not know the parameter would delete or overwrite the object or the bucket.
_DESTROYED_BY_OTHERS = frozenset(
    {("DELETE", "metadataConfiguration"), ("DELETE", "metadataTable"), ("PUT", "annotation"), ("DELETE", "annotation")}
)

# A PUT with one of these changes properties of an object and uploads no object.
_ABOUT_OBJECTS = frozenset({"acl", "tagging", "retention", "legal-hold"})


def not_cacheable(call: S3Call) -> Reason | None:
    """Why the cache must not answer this request, or ``None`` for a plain read of an object."""
    if call.request.method not in ("GET", "HEAD") or call.key is None:
        return Reason.NOT_A_READ
    if call.names and not call.names <= _MEANINGLESS:
        return Reason.SUBRESOURCE
    if b"+" in call.raw_key:
        return Reason.ENCODING
    for name, value in call.request.fields.items():
        if name.startswith(_AMZ) and name not in _SAFE_AMZ and not (name == PAYER and value.strip() == REQUESTER):
            return Reason.HEADER
        if name.startswith(_PREFLIGHT):
            return Reason.HEADER
        if name == b"cache-control" and "no-store" in cache_directives(value.decode("latin-1")):
            return Reason.HEADER
    return None


def lists_objects(call: S3Call) -> bool:
    """Whether a request lists the objects of its bucket, or their versions."""
    return call.request.method == "GET" and call.key is None and bool(call.bucket) and call.names <= _OF_A_LISTING


def refuse_unknown_write(call: S3Call) -> None:
    """Refuse a write with a query parameter that no S3 operation has, or that names a second object to write (renameObject).

    Raises:
        S3Error: NotImplemented.
    """
    for name in call.names:
        if (call.request.method, name) in _DESTROYED_BY_OTHERS:
            what = f"{call.request.method} with the query parameter {name!r} is not supported"
            raise S3Error("NotImplemented", explain=f"{what}: a store that ignores it would do something else.")
    unknown = call.names - _WRITE_PARAMETERS
    if unknown and (unknown := frozenset(name for name in unknown if not name.lower().startswith("x-amz-"))):
        raise S3Error("NotImplemented", explain=f"Writes with the query parameter {min(unknown)!r} are not supported.")


def refuse_large_metadata(call: S3Call) -> None:
    """Refuse user metadata beyond S3's 2 KB: names (without x-amz-meta-) and values, in bytes. Other stores vary.

    Raises:
        S3Error: MetadataTooLarge.
    """
    size = 0
    for name, value in call.request.fields.items():
        if name.startswith(METADATA):
            size += len(name) - len(METADATA) + len(value)
    if size > MAX_METADATA:
        raise S3Error("MetadataTooLarge", extra={"Size": str(size), "MaxSizeAllowed": str(MAX_METADATA)})


def changes_object(call: S3Call) -> bool:
    """Whether a request may change what a read of its own key gives, or who may read it."""
    method, names = call.request.method, call.names
    if call.key is None or method in ("GET", "HEAD", "OPTIONS"):
        return False
    if names and method in ("PUT", "DELETE") and parameter(call.query, "uploadId"):
        # Parts and aborts change nothing readable. Some stores treat a part without its number as a plain PUT.
        return method == "PUT" and not parameter(call.query, "partNumber")
    return not (method == "POST" and names & {"uploads", "select"} and "uploadId" not in names)


def changes_rights(call: S3Call) -> bool:
    """Whether a request may change the rights to read objects of its bucket, as every write to the bucket itself may. Policy,
    ACL, public access block, ownership, tags (policies can test them), payer, creation and deletion change rights. The few other
    writes are rare, and S3 may add operations.
    """
    return bool(call.bucket) and call.key is None and call.request.method in ("PUT", "POST", "DELETE")


def uploads_bytes(call: S3Call) -> bool:
    """Whether the body is the bytes of an object or of a part: a PUT of a key that is not a copy.

    S3 requires a length for those. Rust's object_store sends copies without one, and so do clients that give an access control
    list in headers.
    """
    if call.request.method != "PUT" or call.key is None:
        return False
    return call.request.fields.get(b"x-amz-copy-source") is None and not call.names & _ABOUT_OBJECTS
