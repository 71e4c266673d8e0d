"""The buckets and targets that a request's document names: an allow-list bounds them, too.

The store itself writes to them later, with the rights of the bucket's owner: logs, inventories, replicas, restored objects. So a
key with an allow-list may name only places that the list covers, and no target outside S3, unless the list covers everything.

A document that XML parsers could understand differently is refused, because the store parses it again.

Sources: the request documents in the "Actions" pages of the Amazon S3 API reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.etree.ElementTree import Element

from gateway.api.s3.call import S3Call
from gateway.api.s3.documents import local_name, parsed
from gateway.model.errors import S3Error
from gateway.model.keys import Principal, covers_prefix, is_bucket_name

EVERYTHING = "**"
MAX_DOCUMENT = 2 * 1024**2
"""Bytes of the largest document that is read; S3's own limit is that of a replication configuration, 2 MB."""

_NAMING = frozenset(
    {
        "analytics", "inventory", "logging", "metadataConfiguration", "metadataInventoryTable", "metadataJournalTable",
        "metadataTable", "notification", "replication", "restore",
    }
)  # fmt: skip
"""Query parameters of the writes whose documents name buckets or targets."""
_BUCKETS = frozenset({"bucket", "bucketarn", "bucketname", "targetbucket"})
_PREFIXES = frozenset({"prefix", "targetprefix"})
_TARGETS = frozenset(
    {
        "cloudfunction", "cloudfunctionconfiguration", "eventbridgeconfiguration", "lambdafunctionarn",
        "lambdafunctionconfiguration", "queue", "queuearn", "queueconfiguration", "tablebucketarn", "topic", "topicarn",
        "topicconfiguration",
    }
)  # fmt: skip
_OF_AN_ARN = 6
_WHOLE = frozenset({"replication"})
"""Operations that write under keys which the document does not bound."""


class Destination(NamedTuple):
    """A place that a document names: a bucket and the start of its keys; the bucket is empty for a target outside S3."""

    bucket: str
    prefix: str = ""


def names_destinations(call: S3Call) -> bool:
    """Whether the document of a request may name buckets or targets that the caller's allow-list must cover."""
    allow = call.auth.principal.allow
    return bool(allow) and EVERYTHING not in allow and not _NAMING.isdisjoint(call.names)


def check_destinations(call: S3Call, document: bytes) -> None:
    """Refuse a document that names a place which the caller's allow-list does not cover.

    Raises:
        S3Error: AccessDenied, naming the place; MalformedXML.
    """
    principal = call.auth.principal
    for destination in destinations_of(document, whole=not _WHOLE.isdisjoint(call.names)):
        if not _covered(principal, destination):
            where = repr("/".join(destination)[:200]) if destination.bucket else "the target outside S3"
            raise S3Error(
                "AccessDenied",
                explain=f"The allow-list of this access key does not cover {where}, which the document names.",
            )


def destinations_of(document: bytes, *, whole: bool = False) -> list[Destination]:
    """The places that a document names.

    Args:
        document: of the request; an empty one names nothing.
        whole: prefixes in it do not limit the written keys.

    Raises:
        S3Error: MalformedXML if it is not XML in UTF-8, or has comments or other parts on which parsers differ.
    """
    if not document.strip():
        return []
    try:
        text = document.decode("utf-8")
    except UnicodeDecodeError:
        raise S3Error("MalformedXML") from None
    # A comment splits a text: some parsers take the first part, others all of it.
    if "<!" in text or "\0" in text or "<?" in text.lstrip("\ufeff \t\r\n")[1:]:
        raise S3Error("MalformedXML")
    # Not by recursion: a hostile document may be nested a hundred thousand times.
    return [place for element in parsed(document).iter() for place in _in(element, whole)]


def _in(element: Element, whole: bool) -> Iterator[Destination]:
    prefixes = [_text(child) for child in element if local_name(child).lower() in _PREFIXES]
    # Parsers differ on spaces around a text, and on which of two elements counts; no prefix covers both readings.
    bounded = not whole and len(prefixes) == 1 and prefixes[0] == prefixes[0].strip()
    for child in element:
        name = local_name(child).lower()
        if name in _TARGETS:
            yield Destination("")
        elif name in _BUCKETS and (_text(child).strip() or not len(child)):
            yield Destination(_bucket(_text(child).strip()), prefixes[0] if bounded else "")


def _text(element: Element) -> str:
    """The text of an element, which must have no children: parsers differ on the text of one that has."""
    text = element.text or ""
    if text.strip() and len(element):
        raise S3Error("MalformedXML")
    return text


def _bucket(name: str) -> str:
    """A bucket from its name or its ARN, arn:aws:s3:::NAME; any other ARN stays an ARN, which no allow-list covers."""
    parts = name.split(":")
    return parts[5] if len(parts) == _OF_AN_ARN and (parts[0], parts[2]) == ("arn", "s3") else name


def _covered(principal: Principal, destination: Destination) -> bool:
    bucket, start = destination.bucket, "/".join(destination)
    return is_bucket_name(bucket) and any(covers_prefix(pattern, start) for pattern in principal.allow)
