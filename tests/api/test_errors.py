"""Errors as S3 clients see them."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

import pytest

from gateway.api.s3.errors import AboutCached, as_s3_error, outcome_of, render
from gateway.model.errors import S3_CODES, DiskUnavailable, OriginUnavailable, S3Error
from gateway.model.outcomes import Outcome, Reason


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
    """A shed request is told apart from a failing origin."""
    assert outcome_of(as_s3_error(DiskUnavailable("overload"))) == (Outcome.BYPASS, Reason.OVERLOAD)


def test_what_the_gateway_does_not_do_is_no_failure_of_the_origin() -> None:
    """Rule: 501 is the gateway's own refusal: nobody should look for it at the store."""
    assert outcome_of(S3Error("NotImplemented")) == (Outcome.BYPASS, Reason.INVALID)
