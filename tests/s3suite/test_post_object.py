"""POST Object: uploads by form and their answers. The cases are those of ceph/s3-tests, and some more."""

from __future__ import annotations

import base64
import hashlib
import urllib.parse
from typing import Any

import pytest

from rig.gateways import s3_client
from tests.s3suite.forms import (
    ALLOWED,
    BODY,
    BUCKET,
    FORM_TYPE,
    PUBLIC,
    READ_ONLY,
    SESSION,
    TENANT,
    Policy,
    Target,
    encoded,
)


@pytest.mark.parametrize("version", [2, 4])
def test_an_upload_is_stored_and_answered_with_204(target: Target, version: int) -> None:
    """Rule: without wishes the answer is empty, and says where the object is and which one (S3 API reference, POST Object)."""
    reply = target.post_form(Policy(f"plain-{version}", version=version).signed())
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["location"] == f"{target.gateway.endpoint}/{BUCKET}/plain-{version}"
    assert reply.headers["etag"] == f'"{hashlib.md5(BODY).hexdigest()}"'
    assert target.stored(f"plain-{version}") == BODY


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_the_forms_of_boto3_are_taken(target: Target, version: str) -> None:
    """Rule: forms of ``generate_presigned_post`` are accepted, with the caller's conditions and fields."""
    client = s3_client(target.gateway.endpoint, *TENANT, signature_version=version)
    key = f"boto-{version}/${{filename}}"
    fields = {"acl": "private", "Content-Type": "text/plain", "x-amz-meta-who": "boto"}
    conditions: list[Any] = [{"acl": "private"}, ["starts-with", "$Content-Type", "text/"], {"x-amz-meta-who": "boto"}]
    made = client.generate_presigned_post(BUCKET, key, fields, [*conditions, ["content-length-range", 1, 1000]])
    reply = target.post(f"/{BUCKET}", encoded(list(made["fields"].items()), BODY), {"Content-Type": FORM_TYPE})
    assert reply.status == 204
    head = target.direct.head_object(Bucket=BUCKET, Key=f"boto-{version}/f.bin")
    assert (head["ContentType"], head["Metadata"]) == ("text/plain", {"who": "boto"})


def test_a_session_token_goes_with_the_form(target: Target) -> None:
    """Rule: temporary keys sign forms too, and their token is compared as everywhere."""
    right = Policy("session", fields=[("x-amz-security-token", SESSION[2])], signer=SESSION)
    assert target.post_form(right.signed()).status == 204
    for token in ([], [("x-amz-security-token", "another")]):
        reply = target.post_form(Policy("session", fields=token, signer=SESSION).signed())
        assert reply.error == (400, "InvalidToken")


def test_strangers_upload_to_a_public_bucket(target: Target) -> None:
    """Rule: a form without a policy is anonymous, and the origin decides."""
    reply = target.post_form([("key", "strange"), ("Content-Type", "text/plain")], bucket=PUBLIC)
    assert reply.status == 204
    assert target.stored("strange", PUBLIC) == BODY


def test_strangers_do_not_upload_to_a_private_bucket(target: Target) -> None:
    """Rule: the origin's refusal is passed on; moto alone knows no rights."""
    reply = target.post_form([("key", "strange")])
    assert reply.status == 204 if target.origin == "moto" else reply.error == (403, "AccessDenied")


@pytest.mark.parametrize(("wish", "status"), [("200", 200), ("201", 201), ("204", 204), ("404", 204), ("", 204)])
def test_the_status_is_the_forms_to_choose(target: Target, wish: str, status: int) -> None:
    """Rule: success_action_status may be 200, 201 or 204; anything else is 204."""
    reply = target.post_form(Policy(f"wish/{wish}", [("success_action_status", wish)]).signed())
    assert reply.status == status
    if status != 201:
        assert reply.body == b""
        return
    told = {name: reply.element(name) for name in ("Location", "Bucket", "Key", "ETag")}
    assert told == {
        "Location": f"{target.gateway.endpoint}/{BUCKET}/wish/{wish}",
        "Bucket": BUCKET,
        "Key": f"wish/{wish}",
        "ETag": reply.headers["etag"],
    }


@pytest.mark.parametrize("field", ["success_action_redirect", "redirect"])
def test_the_browser_is_sent_on(target: Target, field: str) -> None:
    """Rule: 303 with bucket, key and ETag added to the address, whose own query and fragment stay."""
    reply = target.post_form(Policy("go on", [(field, "https://page.example/done?a=b#end")]).signed())
    assert reply.status == 303
    parts = urllib.parse.urlsplit(reply.headers["location"])
    assert (parts.scheme, parts.netloc, parts.path, parts.fragment) == ("https", "page.example", "/done", "end")
    etag = f'"{hashlib.md5(BODY).hexdigest()}"'
    assert urllib.parse.parse_qs(parts.query) == {"a": ["b"], "bucket": [BUCKET], "key": ["go on"], "etag": [etag]}


@pytest.mark.parametrize("address", ["javascript:alert(1)", "//page.example", "done.html", "http://[", "http://a b/"])
def test_what_is_no_address_sends_nobody_on(target: Target, address: str) -> None:
    """Rule: as in S3, a redirect field that is not a URL is ignored."""
    reply = target.post_form(Policy("stay", [("success_action_redirect", address)]).signed())
    assert reply.status == 204


@pytest.mark.parametrize(
    ("key", "filename", "stored"),
    [
        ("up/${filename}", "foo.txt", "up/foo.txt"),
        ("up/${filename}.bak", "C:\\\\dir\\\\bar.txt", "up/bar.txt.bak"),
        ("up/${filename}", "/etc/passwd", "up/passwd"),
        ("up/x${filename}", "", "up/x"),
        ("\\$foo.txt", "f", "\\$foo.txt"),
        ("ключ ü+%41.bin", "f", "ключ ü+%41.bin"),
        ("a/../b", "f", "a/../b"),
    ],
)
def test_the_key_is_the_forms(target: Target, key: str, filename: str, stored: str) -> None:
    """Rule: ${filename} is the file's name without its directories; every other character of the key is itself."""
    policy = Policy(key, conditions=[["starts-with", "$key", ""]])
    assert target.post_form(policy.signed(), filename=filename).status == 204
    assert target.stored(stored) == BODY


def test_fields_become_headers_of_the_object(target: Target) -> None:
    """Rule: a form's fields do what headers do in a PUT."""
    fields = [
        ("Cache-Control", "max-age=60"),
        ("Content-Disposition", 'attachment; filename="x"'),
        ("Content-Encoding", "gzip"),
        ("Content-Type", "image/png"),
        ("x-amz-meta-Foo", "bar"),
        ("x-amz-meta-empty", ""),
        ("x-amz-storage-class", "STANDARD"),
    ]
    assert target.post_form(Policy("dressed", fields).signed()).status == 204
    head = target.direct.head_object(Bucket=BUCKET, Key="dressed")
    told = tuple(head[name] for name in ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentType"))
    assert told == ("max-age=60", 'attachment; filename="x"', "gzip", "image/png")
    assert head["Metadata"]["foo"] == "bar"


def test_without_a_type_an_object_is_a_row_of_bytes(target: Target) -> None:
    """Rule: the type that the browser gives the file is not the object's; S3's own default is."""
    assert target.post_form(Policy("untyped").signed()).status == 204
    assert target.direct.head_object(Bucket=BUCKET, Key="untyped")["ContentType"] == "binary/octet-stream"


def test_tags_come_as_a_document(target: Target) -> None:
    """Rule: the field ``tagging`` is XML, as in PutObjectTagging."""
    document = "<Tagging><TagSet><Tag><Key>a b</Key><Value>c/d=&#101;</Value></Tag></TagSet></Tagging>"
    assert target.post_form(Policy("tagged", [("tagging", document)]).signed()).status == 204
    assert target.direct.get_object_tagging(Bucket=BUCKET, Key="tagged")["TagSet"] == [{"Key": "a b", "Value": "c/d=e"}]


@pytest.mark.parametrize(
    "document", ["a=b", "<Tagging/>", "<Tagging><TagSet><Tag><Key>a</Key></Tag></TagSet></Tagging>"]
)
def test_tags_that_are_no_document(target: Target, document: str) -> None:
    """Rule: MalformedXML."""
    assert target.post_form(Policy("tagged", [("tagging", document)]).signed()).error == (400, "MalformedXML")


@pytest.mark.parametrize("size", [0, 1, 3 * 1024**2])
def test_files_of_any_size(target: Target, size: int) -> None:
    """Rule: files of no byte, one byte, and more than is kept in memory are stored."""
    body = bytes(range(256)) * (size // 256 + 1)
    assert target.post_form(Policy("sized").signed(), body[:size]).status == 204
    assert target.stored("sized") == body[:size]


def test_a_file_beyond_the_spool_is_refused(target: Target) -> None:
    """Rule: the file is read whole before the origin is called, so server.max_spool bounds it."""
    reply = target.post_form(Policy("huge").signed(), bytes(8 * 1024**2 + 1))
    assert reply.error == (400, "EntityTooLarge")
    assert reply.element("MaxSizeAllowed") == str(8 * 1024**2)
    assert target.stored("huge") is None


def test_an_upload_replaces_what_is_cached(target: Target) -> None:
    """Rule: a form is a write: the next read through the gateway returns the new object."""
    client = target.gateway.client()
    client.put_object(Bucket=BUCKET, Key="again", Body=b"old")
    for _ in range(2):
        client.get_object(Bucket=BUCKET, Key="again")["Body"].read()
    assert target.post_form(Policy("again").signed()).status == 204
    assert client.get_object(Bucket=BUCKET, Key="again")["Body"].read() == BODY


def test_what_comes_after_the_file_is_ignored(target: Target) -> None:
    """Rule: the file is the last field, so later ones are neither verified nor obeyed."""
    late = encoded([("key", "elsewhere"), ("acl", "public-read")], None)
    body = encoded(Policy("early").signed(), BODY)
    end = body.rindex(b"--", 0, -4)
    boundary = late[: late.index(b"\r\n")]
    joined = body[: body.rindex(boundary)] + late
    assert end
    assert target.post(f"/{BUCKET}", joined, {"Content-Type": FORM_TYPE}).status == 204
    assert target.stored("early") == BODY
    assert target.stored("elsewhere") is None


def test_a_read_only_key_uploads_nothing(target: Target) -> None:
    """Rule: the gateway's own rights hold for forms."""
    reply = target.post_form(Policy("forbidden", signer=READ_ONLY).signed())
    assert reply.error == (403, "AccessDenied")
    assert reply.element("Message") == "Access Denied. This access key is read-only."
    assert target.stored("forbidden") is None


@pytest.mark.parametrize(
    ("key", "filename", "allowed"), [("mine/x", "f", True), ("other/x", "f", False), ("mine${filename}", "f", False)]
)
def test_an_allow_list_bounds_the_key_that_results(target: Target, key: str, filename: str, allowed: bool) -> None:
    """Rule: the allow-list is compared with the key after the file's name was inserted."""
    reply = target.post_form(Policy(key, signer=ALLOWED).signed(), filename=filename)
    assert (reply.status == 204) is allowed
    assert allowed or reply.error == (403, "AccessDenied")


def test_a_form_cannot_copy(target: Target) -> None:
    """Rule: only fields that describe the object become headers; an upload never turns into another operation."""
    for name in ("x-amz-copy-source", "x-amz-decoded-content-length", "x-amz-unheard-of"):
        reply = target.post_form(Policy("copied", [(name, f"{BUCKET}/mine/x")]).signed())
        assert reply.error == (501, "NotImplemented")
    assert target.stored("copied") is None


@pytest.mark.parametrize("value", ["a\r\nx-amz-acl: public-read", "a\nb", "a\0b"])
def test_a_field_cannot_bring_a_second_header(target: Target, value: str) -> None:
    """Rule: line ends in a value are refused, not sent on."""
    reply = target.post_form(Policy("split", [("x-amz-meta-a", value)]).signed())
    assert reply.error == (400, "InvalidArgument")


def test_checksums_are_verified(target: Target) -> None:
    """Rule: a checksum in a field is verified before the origin is called, regardless of the origin's own checks."""
    right = {
        "x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(BODY).digest()).decode(),
        "Content-MD5": base64.b64encode(hashlib.md5(BODY).digest()).decode(),
    }
    assert target.post_form(Policy("summed", list(right.items())).signed()).status == 204
    assert target.stored("summed") == BODY
    for name, value in right.items():
        assert target.post_form(Policy("other", [(name, value)]).signed(), b"other").error == (400, "BadDigest")
        code = "InvalidDigest" if name == "Content-MD5" else "InvalidRequest"
        assert target.post_form(Policy("other", [(name, "nonsense")]).signed()).error == (400, code)
    assert target.stored("other") is None


def test_metadata_has_the_bound_of_s3(target: Target) -> None:
    """Rule: 2 KB, as in a PUT."""
    reply = target.post_form(Policy("verbose", [("x-amz-meta-a", "b" * 2048)]).signed())
    assert reply.error == (400, "MetadataTooLarge")


def test_forms_and_customer_keys(target: Target) -> None:
    """Rule: a customer's key (SSE-C) reaches the origin, and neither log nor error document."""
    key = base64.b64encode(bytes(range(32))).decode()
    digest = base64.b64encode(hashlib.md5(bytes(range(32))).digest()).decode()
    prefix = "x-amz-server-side-encryption-customer-"
    fields = [(f"{prefix}algorithm", "AES256"), (f"{prefix}key", key), (f"{prefix}key-md5", digest)]
    assert target.post_form(Policy("secret", fields).signed()).status == 204
    wrong = Policy("secret", fields, conditions=[["eq", f"${prefix}key", "another-customer-key"]])
    reply = target.post_form(wrong.signed())
    assert reply.error == (403, "AccessDenied")
    told = reply.body.decode() + target.log.read_text() + target.gateway.log.read_text()
    assert key not in told
    assert "another-customer-key" not in told


def test_virtual_hosts_need_no_bucket_in_the_path(target: Target) -> None:
    """Rule: without ``server.domain`` the path names the bucket, and a form without a bucket is refused."""
    reply = target.post("/", encoded([("key", "x")], BODY), {"Content-Type": FORM_TYPE})
    assert reply.error == (405, "MethodNotAllowed")


def test_a_browsers_origin_reaches_the_store(target: Target) -> None:
    """Rule: CORS is the origin's; the answer to a form carries the headers that it gives a PUT."""
    rules = {"CORSRules": [{"AllowedMethods": ["PUT"], "AllowedOrigins": ["http://page"], "ExposeHeaders": ["ETag"]}]}
    target.direct.put_bucket_cors(Bucket=BUCKET, CORSConfiguration=rules)
    body = encoded(Policy("cors").signed(), BODY)
    reply = target.post(f"/{BUCKET}", body, {"Content-Type": FORM_TYPE, "Origin": "http://page"})
    assert reply.status == 204
    assert target.origin == "moto" or reply.headers["access-control-allow-origin"] == "http://page"
