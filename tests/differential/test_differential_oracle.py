"""The comparison itself: differences that it must find, and the narrow effect of an exception."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.differential.asks import Ask, Reply
from tests.differential.sameness import Deviation, Ledger, differences

ASK = Ask("GET", "bucket", "key")
HEADERS = {"etag": '"a"', "content-length": "3", "content-type": "text/plain", "x-amz-meta-a": "1"}
WHOLE = Reply(200, HEADERS, b"abc")
REFUSED = Reply(403, {"content-type": "application/xml"}, b"<?xml?><Error><Code>AccessDenied</Code></Error>")


@pytest.mark.parametrize(
    ("direct", "through"),
    [
        (WHOLE, replace(WHOLE, status=206)),
        (WHOLE, replace(WHOLE, body=b"abd")),
        (WHOLE, replace(WHOLE, headers={**HEADERS, "etag": '"b"'})),
        (WHOLE, replace(WHOLE, headers={**HEADERS, "content-encoding": "gzip"})),
        (WHOLE, replace(WHOLE, headers={name: value for name, value in HEADERS.items() if name != "x-amz-meta-a"})),
        (REFUSED, replace(REFUSED, body=REFUSED.body.replace(b"AccessDenied", b"NoSuchKey"))),
        (REFUSED, replace(REFUSED, headers={**REFUSED.headers, "content-range": "bytes */3"})),
    ],
)
def test_every_kind_of_difference_is_found(direct: Reply, through: Reply) -> None:
    """Status, bytes, a changed, added or missing header, and the code of an error are differences, whichever side has them."""
    assert differences(ASK, direct, through)
    assert differences(ASK, through, direct)


def test_what_is_about_the_server_is_no_difference() -> None:
    """Dates, request ids, connections and the text of an error may differ."""
    assert differences(ASK, WHOLE, replace(WHOLE, headers={**HEADERS, "date": "now", "x-larder-cache": "HIT"})) == []
    assert differences(ASK, REFUSED, replace(REFUSED, body=REFUSED.body + b"<Message>another</Message>")) == []


def test_an_exception_for_headers_excuses_nothing_else() -> None:
    """A deviation that names headers leaves the rest compared, and one that does not apply excuses nothing."""
    etags = Deviation("", lambda *_: True, frozenset({"etag"}))
    other = replace(WHOLE, headers={**HEADERS, "etag": '"b"'})
    assert differences(ASK, WHOLE, other, [etags]) == []
    assert differences(ASK, WHOLE, replace(other, body=b"xyz"), [etags])
    assert differences(ASK, WHOLE, other, [Deviation("", lambda *_: False)])


def test_a_ledger_with_a_difference_fails() -> None:
    """A run ends in a failure that names the request and what differed."""
    ledger = Ledger()
    ledger.compare("warm", ASK, WHOLE, WHOLE)
    ledger.verdict()
    ledger.compare("warm", ASK, WHOLE, replace(WHOLE, body=b"abd"))
    with pytest.raises(AssertionError, match=r"1 of 2 comparisons differ:\nwarm: Ask\(method='GET'"):
        ledger.verdict()
