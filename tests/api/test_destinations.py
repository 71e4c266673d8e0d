"""Documents that name buckets: an allow-list covers what they name."""

from __future__ import annotations

import pytest

from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call, resource_of
from gateway.api.s3.destinations import check_destinations, names_destinations
from gateway.api.s3.payload import PayloadForm
from gateway.model.errors import S3Error
from gateway.model.keys import OriginIdentity, Principal
from gateway.model.s3.sigv4 import WireRequest


def within(path: str, content: str) -> str:
    """XML inside these elements."""
    names = path.split("/")
    return "".join(f"<{name}>" for name in names) + content + "".join(f"</{name}>" for name in reversed(names))


_AT_S3 = "Destination/S3BucketDestination"
_REPORT = "<Format>CSV</Format><Bucket>arn:aws:s3:::{}</Bucket><Prefix>{}</Prefix>"
LOGGING = within("BucketLoggingStatus/LoggingEnabled", "<TargetBucket>{}</TargetBucket><TargetPrefix>{}</TargetPrefix>")
REPLICATION = within(
    "ReplicationConfiguration/Rule",
    "<Filter><Prefix>{1}</Prefix></Filter><Prefix>{1}</Prefix><Destination><Bucket>arn:aws:s3:::{0}</Bucket></Destination>",
)
RESTORE = within("RestoreRequest/OutputLocation/S3", "<BucketName>{}</BucketName><Prefix>{}</Prefix>")
DOCUMENTS = {
    "logging": LOGGING,
    "inventory": within(f"InventoryConfiguration/{_AT_S3}", _REPORT),
    "analytics": within(f"AnalyticsConfiguration/StorageClassAnalysis/DataExport/{_AT_S3}", _REPORT),
    "replication": REPLICATION,
    "restore": RESTORE,
}
TOPIC = within("NotificationConfiguration/TopicConfiguration/Topic", "arn:aws:sns:r:1:t")
TABLES = within("MetadataTableConfiguration/S3TablesDestination/TableBucketArn", "arn:aws:s3tables:r:1:bucket/mine")


def refusal(query: str, document: str | bytes, allow: tuple[str, ...] = ("mine/**", "shared/out/**")) -> str:
    """The code that refuses a document of a key with this allow-list; empty if it passes."""
    principal = Principal("AK", "t", OriginIdentity("default", "OK"), allow)
    request, kept, names = resource_of(WireRequest("PUT", b"/mine", query.encode(), []), frozenset())
    call = S3Call(request, Authenticated(principal, PayloadForm.UNSIGNED, ""), "mine", b"", None, kept, names)
    if not names_destinations(call):
        return ""
    try:
        check_destinations(call, document if isinstance(document, bytes) else document.encode())
    except S3Error as error:
        return error.code
    return ""


@pytest.mark.parametrize("query", DOCUMENTS)
def test_a_bucket_outside_the_list_is_refused(query: str) -> None:
    """Rule: a document may name a bucket that the list covers whole, and no other."""
    assert refusal(query, DOCUMENTS[query].format("mine", "")) == ""
    assert refusal(query, DOCUMENTS[query].format("victim", "mine/")) == "AccessDenied"
    assert refusal(query, DOCUMENTS[query].format("victim", ""), allow=()) == ""
    assert refusal(query, DOCUMENTS[query].format("victim", ""), allow=("**",)) == ""


@pytest.mark.parametrize("query", [name for name in DOCUMENTS if name != "replication"])
def test_a_prefix_bounds_what_is_written(query: str) -> None:
    """Rule: within a bucket that the list covers in part, the prefix of the document decides."""
    assert refusal(query, DOCUMENTS[query].format("shared", "out/logs-")) == ""
    assert refusal(query, DOCUMENTS[query].format("shared", "ou")) == "AccessDenied"
    assert refusal(query, DOCUMENTS[query].format("shared", "")) == "AccessDenied"


def test_a_filter_bounds_no_replica() -> None:
    """Rule: replicas have the keys of their sources, so the list must cover the whole destination."""
    assert refusal("replication", REPLICATION.format("shared", "out/")) == "AccessDenied"


def test_every_place_counts() -> None:
    """Rule: of several destinations each must be covered, and of two prefixes none bounds."""
    two = within("BucketLoggingStatus", "<TargetBucket>mine</TargetBucket><TargetBucket>victim</TargetBucket>")
    assert refusal("logging", two) == "AccessDenied"
    assert refusal("restore", RESTORE.format("shared", "out/</Prefix><Prefix>")) == "AccessDenied"


@pytest.mark.parametrize(("query", "document"), [("notification", TOPIC), ("metadataTable", TABLES)])
def test_targets_outside_s3_are_in_no_list(query: str, document: str) -> None:
    """Rule: topics, queues, functions and table buckets are covered by a list that covers everything only."""
    assert refusal(query, document) == "AccessDenied"
    assert refusal(query, document, allow=("**",)) == ""
    assert refusal("notification", "<NotificationConfiguration/>") == ""


@pytest.mark.parametrize(
    "name",
    [
        "arn:aws:s3:r:1:accesspoint/mine",
        "arn:aws:s3tables:r:1:bucket/mine",
        "tenant:mine",
        "mine/x",
        "",
        "arn:aws:s3:::",
    ],
)
def test_a_name_that_is_no_bucket_is_covered_by_nothing(name: str) -> None:
    """Rule: access points, table buckets, radosgw's names with a tenant, and nothing are no bucket of the list."""
    assert refusal("logging", LOGGING.format(name, "")) == "AccessDenied"


@pytest.mark.parametrize(
    "document",
    [
        LOGGING.format("mine<!-- -->", ""),
        LOGGING.format("<![CDATA[mine]]>", ""),
        LOGGING.format("mine<?x?>", ""),
        LOGGING.format("mine<a/>victim", ""),
        "no XML",
        LOGGING.format("mine", "").encode("utf-16"),
        f'<!DOCTYPE x [<!ENTITY m "mine">]>{LOGGING.format("&m;", "")}',
    ],
)
def test_what_readers_understand_differently_is_refused(document: str | bytes) -> None:
    """Rule: comments, CDATA, instructions, entities, text beside elements and other encodings are refused."""
    assert refusal("logging", document) == "MalformedXML"


def test_spaces_around_a_prefix_bound_nothing() -> None:
    """Rule: a store may keep them or not, so the whole bucket must be covered."""
    assert refusal("logging", LOGGING.format(" mine ", " logs/")) == ""
    assert refusal("logging", LOGGING.format("shared", " out/")) == "AccessDenied"


def test_a_deeply_nested_document_is_read_to_its_end() -> None:
    """Rule: depth neither hides a destination nor breaks the request."""
    path = "/".join(["a"] * 50_000)
    assert refusal("logging", within(path, "<TargetBucket>victim</TargetBucket>")) == "AccessDenied"
    assert refusal("logging", within(path, "<TargetBucket>mine</TargetBucket>")) == ""


def test_an_empty_document_names_nothing() -> None:
    """Rule: a deletion, which has no document, is no matter of destinations."""
    assert refusal("inventory=&id=1", b"") == ""
