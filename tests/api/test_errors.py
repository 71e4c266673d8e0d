"""Errors as S3 clients see them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

import gateway
from gateway.api.s3.errors import AboutCached, as_s3_error, outcome_of, render
from gateway.model.errors import S3_CODES, DiskUnavailable, OriginBusy, OriginUnavailable, S3Error
from gateway.model.outcomes import Outcome, Reason
from gateway.server.refusals import HOST_ID, refusal


def test_a_document_carries_code_message_and_details() -> None:
    """The elements that SDKs read, escaped."""
    error = S3Error("InvalidArgument", "a < b & c", extra={"ArgumentName": "x"})
    root = fromstring(render(error, "/b/k?<>", "00AB"))
    assert {child.tag: child.text for child in root} == {
        "Code": "InvalidArgument",
        "Message": "a < b & c",
        "ArgumentName": "x",
        "Resource": "/b/k?<>",
        "RequestId": "00AB",
        "HostId": HOST_ID,
    }


def test_what_xml_cannot_say_is_replaced() -> None:
    """A control character in a key must not make the document unreadable."""
    root = fromstring(render(S3Error("NoSuchKey"), "/b/\x00\x1b", "1"))
    assert root.findtext("Resource") == "/b/\ufffd\ufffd"


def test_an_unreachable_origin_is_a_503_that_asks_to_retry() -> None:
    """SDKs back off and come again."""
    error = as_s3_error(OriginUnavailable("http://h: refused"))
    assert (error.status, error.headers["Retry-After"]) == (503, "1")


@pytest.mark.parametrize("code", sorted(S3_CODES))
def test_every_refusal_says_why_it_was_not_a_hit(code: str) -> None:
    """The cache-status header of an error has a reason, unless the error follows from a hit."""
    outcome, reason = outcome_of(S3Error(code))
    assert outcome is not Outcome.HIT
    assert reason is not None


def test_a_failed_precondition_of_a_cached_object_counts_as_what_it_was() -> None:
    """412 and 416 may be answered from the cache like any other read."""
    assert outcome_of(AboutCached("PreconditionFailed", (Outcome.HIT, None))) == (Outcome.HIT, None)


def test_overload_is_named() -> None:
    """A shed request differs from a failing origin."""
    assert outcome_of(as_s3_error(DiskUnavailable("overload"))) == (Outcome.BYPASS, Reason.OVERLOAD)


def test_want_of_a_connection_to_the_origin_is_overload() -> None:
    """Rule: the origin may be well; the client is asked to slow down, and comes again."""
    error = as_s3_error(OriginBusy("all 2 connections are in use"))
    assert (error.code, error.headers["Retry-After"]) == ("SlowDown", "1")
    assert outcome_of(error) == (Outcome.BYPASS, Reason.OVERLOAD)


def test_what_the_gateway_does_not_do_is_no_failure_of_the_origin() -> None:
    """Rule: 501 is the gateway's own refusal; its text does not blame the store."""
    assert outcome_of(S3Error("NotImplemented")) == (Outcome.BYPASS, Reason.INVALID)


def test_a_failed_precondition_says_what_clients_look_for() -> None:
    """Rule: s3fs and others recognise a lost race by S3's sentence, so it is S3's to the letter."""
    assert S3Error("PreconditionFailed").message == "At least one of the pre-conditions you specified did not hold"


def test_refusals_of_the_server_are_the_same_document() -> None:
    """Rule: unreadable requests are refused by the same document as others, with a HostId."""
    root = fromstring(refusal("InvalidRequest", "Why <not>.").partition(b"\r\n\r\n")[2])
    assert [child.tag for child in root] == ["Code", "Message", "RequestId", "HostId"]
    assert root.findtext("Message") == "Invalid Request. Why <not>."


# S3's own messages besides a code's standard sentence; "*" stands for each inserted value.
S3_VARIANTS = {
    "AccessDenied": (
        "AWS authentication requires a valid Date or x-amz-date header",
        "Invalid according to Policy: *",
        "Invalid date (should be seconds since epoch): *",
        "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters",
        "Request has expired",
        "Request is not valid yet",
        "There were headers present in the request which were not signed",
    ),
    "AuthorizationHeaderMalformed": ("The authorization header is malformed; *",),
    "AuthorizationQueryParametersError": (
        "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, "
        "X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
        "X-Amz-Algorithm only supports *",
        "X-Amz-Date must be in the ISO8601 Long Format *",
        "X-Amz-Expires *",
    ),
    "BadDigest": ("The * you specified did not match the calculated checksum.",),
    "InvalidArgument": (
        "Bucket POST must contain a field named *",
        "Only one auth mechanism allowed; *",
        "POST requires exactly one file upload per request.",
        "Query String Parameters not allowed on POST requests.",
        "Unsupported Authorization Type",
        "User key must have a length greater than 0.",
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, *",
    ),
    "InvalidPolicyDocument": ("Invalid Policy: *",),
    "InvalidRequest": (
        "Expecting a single x-amz-checksum- header",
        "Missing required header for this request: x-amz-content-sha256",
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        "The value specified in the x-amz-trailer header is not supported",
        "Value for * header is invalid.",
    ),
}


def _text(node: ast.expr) -> str | None:
    """A literal's text, with "*" for each placeholder; ``None`` for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    return None


def _messages() -> Iterator[tuple[str, str, str]]:
    """Place, code and message of every S3 error in the gateway with a specific message."""
    for path in sorted(Path(gateway.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "S3Error":
                code, message = (_text(argument) for argument in [*node.args, ast.Constant(None)][:2])
                if code and message:
                    yield f"{path.name}:{node.lineno}", code, message


def test_messages_are_those_of_s3() -> None:
    """Rule: clients match on sentences, so a code comes with S3's own; ours only follows it (``explain``)."""
    wrong = [
        f"{place}: {code}: {message}"
        for place, code, message in _messages()
        if not any(fnmatchcase(message, variant) for variant in S3_VARIANTS.get(code, ()))
    ]
    assert wrong == []


def test_an_explanation_follows_the_sentence_of_s3() -> None:
    """Rule: S3's sentence comes first, whole."""
    assert S3Error("AccessDenied", explain="It is read-only.").message == "Access Denied. It is read-only."
