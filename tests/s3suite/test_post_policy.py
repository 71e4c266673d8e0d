"""POST Object: which forms are refused, with which code. The cases are those that ceph/s3-tests has, and some of our own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.s3suite.forms import BODY, BUCKET, FORM_TYPE, TENANT, Policy, Target, changed, encoded

POLICY_SENTENCE = "Invalid according to Policy: "


@pytest.mark.parametrize("version", [2, 4])
def test_an_expired_policy(target: Target, version: int) -> None:
    """Rule: after its expiration a policy allows nothing."""
    reply = target.post_form(Policy(expires_in=-5, version=version).signed())
    assert reply.error == (403, "AccessDenied")
    assert reply.element("Message") == POLICY_SENTENCE + "Policy expired."


@pytest.mark.parametrize("version", [2, 4])
def test_a_wrong_signature(target: Target, version: int) -> None:
    """Rule: the signature covers the policy, to the byte."""
    name = "signature" if version == 2 else "x-amz-signature"
    form = Policy(version=version).signed()
    right = dict(form)[name]
    assert target.post_form(changed(form, name, right[::-1])).error == (403, "SignatureDoesNotMatch")
    other = dict(Policy("other", version=version).signed())["policy"]
    assert target.post_form(changed(form, "policy", other)).error == (403, "SignatureDoesNotMatch")


@pytest.mark.parametrize("version", [2, 4])
def test_an_unknown_access_key(target: Target, version: int) -> None:
    """Rule: InvalidAccessKeyId."""
    reply = target.post_form(Policy(signer=("NOBODY", TENANT[1]), version=version).signed())
    assert reply.error == (403, "InvalidAccessKeyId")


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (2, "signature"),
        (2, "AWSAccessKeyId"),
        (2, "policy"),
        (4, "x-amz-signature"),
        (4, "x-amz-credential"),
        (4, "x-amz-algorithm"),
        (4, "x-amz-date"),
        (4, "policy"),
        (4, "key"),
    ],
)
def test_a_field_that_must_be_there(target: Target, version: int, name: str) -> None:
    """Rule: S3 names the field that is missing."""
    reply = target.post_form(changed(Policy(version=version).signed(), name, None))
    assert reply.error == (400, "InvalidArgument")
    assert reply.element("ArgumentName").lower() == name.lower()


def test_two_mechanisms_at_once(target: Target) -> None:
    """Rule: a form with two signature versions is ambiguous, so it is refused."""
    both = Policy().signed() + Policy(version=2).signed()[-2:]
    assert target.post_form(both).error == (400, "InvalidArgument")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("x-amz-algorithm", "AWS4-HMAC-SHA1", "AuthorizationQueryParametersError"),
        ("x-amz-credential", "GWA/20260101", "AuthorizationQueryParametersError"),
        ("x-amz-credential", "GWA/20200101/us-east-1/s3/aws4_request", "AuthorizationQueryParametersError"),
        ("x-amz-date", "yesterday", "AuthorizationQueryParametersError"),
        ("policy", "no base64 %", "SignatureDoesNotMatch"),
    ],
)
def test_a_signature_that_cannot_be_read(target: Target, name: str, value: str, code: str) -> None:
    """Rule: an unreadable signature is refused with a code for the wrong part."""
    assert target.post_form(changed(Policy().signed(), name, value)).error[1] == code


@pytest.mark.parametrize("name", ["bucket", "key", "x-amz-credential", "x-amz-date", "x-amz-algorithm"])
def test_every_field_needs_a_condition(target: Target, name: str) -> None:
    """Rule: a field without a condition could be chosen by the bearer, so it is refused."""
    reply = target.post_form(Policy(omit=(name,)).signed())
    assert reply.error == (403, "AccessDenied")
    assert reply.element("Message") == f"{POLICY_SENTENCE}Extra input fields: {name}"


@pytest.mark.parametrize("name", ["acl", "Content-Type", "x-amz-meta-foo", "success_action_status", "submit"])
def test_fields_of_the_bearers_own(target: Target, name: str) -> None:
    """Rule: a field that the policy does not know is refused, whether it would mean anything or not."""
    reply = target.post_form([(name, "private"), *Policy().signed()])
    assert reply.error == (403, "AccessDenied")
    assert reply.element("Message") == f"{POLICY_SENTENCE}Extra input fields: {name.lower()}"


def test_fields_to_be_ignored(target: Target) -> None:
    """Rule: x-ignore-* fields need no condition and have no effect."""
    assert target.post_form([("x-ignore-foo", "bar"), *Policy("ignored").signed()]).status == 204


def test_names_in_any_case(target: Target) -> None:
    """Rule: names of fields, conditions and operators are compared without regard to case."""
    policy = Policy(
        "shouted",
        [("aCl", "private"), ("CONTENT-type", "text/plain")],
        [
            {"bUcKeT": BUCKET},
            ["StArTs-WiTh", "$KeY", "shout"],
            {"AcL": "private"},
            ["EQ", "$CoNtEnT-TyPe", "text/plain"],
        ],
    )
    shouted = [(name.upper(), value) for name, value in policy.signed()]
    assert target.post_form(shouted).status == 204
    assert target.stored("shouted") == BODY


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ([("acl", "public-read")], {"acl": "private"}),
        ([("acl", "Private")], ["eq", "$acl", "private"]),
        ([("x-amz-meta-foo", "barclamp")], ["eq", "$x-amz-meta-foo", ""]),
        ([("x-amz-meta-foo", "foobar")], ["starts-with", "$x-amz-meta-foo", "bar"]),
        ([], ["starts-with", "$x-amz-meta-foo", "bar"]),
        ([], ["starts-with", "$x-amz-meta-foo", ""]),
        ([], {"acl": "private"}),
        ([("Content-Type", "image/png,text/html")], ["starts-with", "$Content-Type", "image/"]),
        ([], ["starts-with", "$key", "other"]),
        ([], ["eq", "$bucket", "other-bucket"]),
        ([], {"key": "${filename}"}),
    ],
)
def test_a_condition_that_does_not_hold(target: Target, fields: list[tuple[str, str]], condition: Any) -> None:
    """Rule: every condition must hold, for the values with their case, and one about a missing field does not."""
    reply = target.post_form(Policy("conditional", fields, [condition]).signed())
    assert reply.error == (403, "AccessDenied")
    assert reply.element("Message").startswith(POLICY_SENTENCE + "Policy Condition failed: [")
    assert target.stored("conditional") is None


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ([("x-amz-meta-foo", "barclamp")], ["starts-with", "$x-amz-meta-foo", "bar"]),
        ([("x-amz-meta-foo", "anything")], ["starts-with", "$x-amz-meta-foo", ""]),
        ([("Content-Type", "image/png, image/gif")], ["starts-with", "$Content-Type", "image/"]),
        ([], ["content-length-range", len(BODY), len(BODY)]),
        ([], ["content-length-range", "0", "1000"]),
        ([], ["starts-with", "$key", ""]),
    ],
)
def test_a_condition_that_holds(target: Target, fields: list[tuple[str, str]], condition: Any) -> None:
    """Rule: an empty prefix allows every value, and a list of types is compared one by one."""
    assert target.post_form(Policy("held", fields, [condition]).signed()).status == 204


@pytest.mark.parametrize(
    ("size", "least", "most", "code"),
    [
        (10, 0, 9, "EntityTooLarge"),
        (1, 0, 0, "EntityTooLarge"),
        (9, 10, 20, "EntityTooSmall"),
        (0, 1, 20, "EntityTooSmall"),
        (3 * 1024**2, 0, 2 * 1024**2, "EntityTooLarge"),
    ],
)
def test_a_file_out_of_range(target: Target, size: int, least: int, most: int, code: str) -> None:
    """Rule: the file is compared with content-length-range before the origin is called."""
    reply = target.post_form(Policy("range", conditions=[["content-length-range", least, most]]).signed(), bytes(size))
    assert reply.error == (400, code)
    assert target.stored("range") is None


EXPIRES = "2040-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "document",
    [
        "",
        "no json",
        "[]",
        "[" * 20_000,
        {"conditions": []},
        {"expiration": EXPIRES},
        {"EXPIRATION": EXPIRES, "conditions": []},
        {"expiration": EXPIRES, "CONDITIONS": []},
        {"expiration": "2040-01-01 00:00:00+00:00", "conditions": []},
        {"expiration": "2040-13-01T00:00:00Z", "conditions": []},
        {"expiration": 2208988800, "conditions": []},
        {"expiration": EXPIRES, "conditions": {}},
        {"expiration": EXPIRES, "conditions": [{}]},
        {"expiration": EXPIRES, "conditions": [{"acl": "private", "bucket": BUCKET}]},
        {"expiration": EXPIRES, "conditions": [{"success_action_status": 201}]},
        {"expiration": EXPIRES, "conditions": ["acl"]},
        {"expiration": EXPIRES, "conditions": [[]]},
        {"expiration": EXPIRES, "conditions": [["eq", "acl", "private"]]},
        {"expiration": EXPIRES, "conditions": [["eq", "$acl"]]},
        {"expiration": EXPIRES, "conditions": [["ends-with", "$key", "x"]]},
        {"expiration": EXPIRES, "conditions": [["content-length-range", 0]]},
        {"expiration": EXPIRES, "conditions": [["content-length-range", -1, 0]]},
        {"expiration": EXPIRES, "conditions": [["content-length-range", 0, 1.5]]},
        {"expiration": EXPIRES, "conditions": [["content-length-range", True, 1]]},
    ],
)
def test_a_policy_that_is_none(target: Target, document: Any) -> None:
    """Rule: an unreadable policy gets 400 InvalidPolicyDocument, and the top-level names are case-sensitive."""
    reply = target.post_form(Policy(document=document or " ").signed())
    assert reply.error == (
        400,
        "MaxPostPreDataLengthExceededError" if document == "[" * 20_000 else "InvalidPolicyDocument",
    )


def test_a_dollar_may_be_escaped(target: Target) -> None:
    """Rule: in a policy "\\$" is a dollar sign, although JSON knows no such escape."""
    conditions = f'[{{"bucket": "{BUCKET}"}}, ["eq", "$key", "\\$price"]]'
    document = f'{{"expiration": "{EXPIRES}", "conditions": {conditions}}}'
    assert target.post_form(Policy("$price", document=document, version=2).signed()).status == 204


def test_a_form_without_a_file(target: Target) -> None:
    """Rule: a form uploads exactly one file."""
    reply = target.post_form(Policy().signed(), None)
    assert reply.error == (400, "InvalidArgument")
    assert reply.element("Message") == "POST requires exactly one file upload per request."


def test_fields_after_the_file_are_missing(target: Target) -> None:
    """Rule: fields after the file are not read, so a form that begins with the file has no key."""
    form = encoded([], BODY).removesuffix(b"--\r\n") + b"\r\n" + encoded(Policy().signed(), None).partition(b"\r\n")[2]
    assert target.post(f"/{BUCKET}", form, {"Content-Type": FORM_TYPE}).error == (400, "InvalidArgument")


@pytest.mark.parametrize("key", ["", "${filename}"])
def test_a_key_of_nothing(target: Target, key: str) -> None:
    """Rule: the key has at least one character."""
    reply = target.post_form(Policy(key).signed(), filename="")
    assert reply.error == (400, "InvalidArgument")
    assert reply.element("Message") == "User key must have a length greater than 0."


def test_a_key_that_is_too_long(target: Target) -> None:
    """Rule: 1,024 bytes, with the file's name in it."""
    assert target.post_form(Policy("${filename}").signed(), filename="x" * 1025).error == (400, "KeyTooLongError")


def test_a_field_twice(target: Target) -> None:
    """Rule: a field of which one would be checked and the other obeyed is refused."""
    assert target.post_form([("KEY", "a"), *Policy().signed()]).error == (400, "InvalidArgument")


@pytest.mark.parametrize("fields", [[("a", "x" * 20_481)], [(f"f{number}", "") for number in range(101)]])
def test_fields_are_bounded(target: Target, fields: list[tuple[str, str]]) -> None:
    """Rule: S3 takes 20 KB of fields before the file; they are kept in memory, so their number has a bound too."""
    assert target.post_form(fields).error == (400, "MaxPostPreDataLengthExceededError")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form",
        encoded([("key", "cut")], BODY)[:-20],
        encoded([("key", "cut")], None)[:-20],
        encoded([("key", "cut")], BODY).replace(b'name="key"', b'name="\xff"'),
        encoded([("key", "cut")], BODY).replace(b'name="key"', b""),
        encoded([("key", "cut")], BODY).replace(b"\r\n\r\ncut", b"\r\n\r\n\xff\xfe"),
    ],
)
def test_a_body_that_is_no_form(target: Target, body: bytes) -> None:
    """Rule: MalformedPOSTRequest, and nothing is stored."""
    assert target.post(f"/{BUCKET}", body, {"Content-Type": FORM_TYPE}).error == (400, "MalformedPOSTRequest")
    assert target.stored("cut") is None


@pytest.mark.parametrize(
    "kind",
    ["multipart/form-data", "multipart/form-data; boundary=", f"{FORM_TYPE.partition(';')[0]}; boundary={'b' * 300}"],
)
def test_a_form_without_a_boundary(target: Target, kind: str) -> None:
    """Rule: MalformedPOSTRequest."""
    assert target.post(f"/{BUCKET}", encoded([], BODY), {"Content-Type": kind}).error == (400, "MalformedPOSTRequest")


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", ""])
def test_a_post_that_is_no_form(target: Target, kind: str) -> None:
    """Rule: a POST of a bucket is a form."""
    reply = target.post(f"/{BUCKET}", b"key=x", {"Content-Type": kind} if kind else {})
    assert reply.error == (412, "PreconditionFailed")
    assert reply.element("Condition") == "Bucket POST must be of the enclosure-type multipart/form-data"


@pytest.mark.parametrize("query", ["acl", "delete", "uploads", "key=x", "tagging"])
def test_a_form_with_a_query(target: Target, query: str) -> None:
    """Rule: a form has no parameters; stores differ on which of the two operations such a request is."""
    reply = target.post(f"/{BUCKET}?{query}", encoded(Policy().signed(), BODY), {"Content-Type": FORM_TYPE})
    assert reply.error == (400, "InvalidArgument")
    assert reply.element("Message") == "Query String Parameters not allowed on POST requests."


def test_a_form_to_an_object(target: Target) -> None:
    """Rule: forms are posted to buckets."""
    reply = target.post(f"/{BUCKET}/key", encoded(Policy().signed(), BODY), {"Content-Type": FORM_TYPE})
    assert reply.error == (405, "MethodNotAllowed")


def test_refused_forms_are_logged_with_what_they_claim(target: Target) -> None:
    """Rule: the log has the key to be written, and the access key."""
    form = changed(Policy("claimed/key").signed(), "x-amz-signature", "0" * 64)
    assert target.post_form(form).status == 403
    line = target.line_of("claimed/key")
    for part in (
        f"- {BUCKET} [",
        f" {TENANT[0]} ",
        " REST.POST.OBJECT claimed/key ",
        " 403 SignatureDoesNotMatch ",
        " SigV4 ",
    ):
        assert part in line
