"""Known deviations of the tests' origins from S3, each with its reason.

The gateway answers reads of cached objects itself, as S3 does (by RFC 9110 where S3 does not specify). Answers that it passes
through are the origin's own, odd or not, and need no entry here.
"""

from __future__ import annotations

import re

from tests.differential.asks import Ask, Reply
from tests.differential.sameness import Deviation

_DATE = re.compile(r"[A-Z][a-z]{2}, [0-3]\d [A-Z][a-z]{2} \d{4} [0-2]\d:\d\d:\d\d GMT")
_SINCE = {"if-modified-since", "if-unmodified-since"}
_ONE_TAG = re.compile(r'"?[^",*/ ]+"?')


def _no_tag(ask: Ask, _direct: Reply, _through: Reply) -> bool:
    return any(name.lower() in ("if-match", "if-none-match") and not value.strip() for name, value in ask.headers)


def _more_than_one_tag(ask: Ask, _direct: Reply, _through: Reply) -> bool:
    told = [value for name, value in ask.headers if name.lower() in ("if-match", "if-none-match")]
    return any(not _ONE_TAG.fullmatch(value) for value in told)


def _if_range(ask: Ask, _direct: Reply, _through: Reply) -> bool:
    return any(name.lower() == "if-range" for name, _ in ask.headers)


def _strange_date(ask: Ask, direct: Reply, _through: Reply) -> bool:
    told = [value for name, value in ask.headers if name.lower() in ("if-modified-since", "if-unmodified-since")]
    return direct.status in (304, 400, 412, 500) and any(not _DATE.fullmatch(value) for value in told)


def _both_date_and_tag(ask: Ask, direct: Reply, _through: Reply) -> bool:
    told = {name.lower() for name, _ in ask.headers}
    return direct.status in (304, 412) and bool(told & _SINCE) and bool(told & {"if-match", "if-none-match"})


def _not_modified(_ask: Ask, direct: Reply, through: Reply) -> bool:
    return direct.status == through.status == 304


def _both_not_modified(_ask: Ask, direct: Reply, through: Reply) -> bool:
    return direct.status == through.status == 304 and direct.headers.get("etag") == through.headers.get("etag")


def _both_refused(_ask: Ask, direct: Reply, through: Reply) -> bool:
    return direct.status == through.status and through.status in (412, 416) and direct.code == through.code


OF_FAKE: tuple[Deviation, ...] = (
    Deviation("takes an empty list of tags for none; to the gateway it is a list that no tag is in", _no_tag),
)

_OF_BOTH = (
    Deviation('compares If-Match and If-None-Match as one string: no lists, no "*", no weak tags', _more_than_one_tag),
    Deviation("does not know If-Range", _if_range),
    Deviation("looks at the dates although there is a tag", _both_date_and_tag),
    Deviation("refuses conditional dates that it cannot read, or reads more of them than HTTP has", _strange_date),
)

_SHA256 = "x-amz-content-sha256"


def _always(_ask: Ask, _direct: Reply, _through: Reply) -> bool:
    return True


def _no_bytes(ask: Ask, direct: Reply, through: Reply) -> bool:
    return ask.header("range").endswith("=-0") and (direct.status, through.status) == (206, 416)


def _body_of_a_head(ask: Ask, direct: Reply, through: Reply) -> bool:
    return ask.method == "HEAD" and "acl" in ask.query and (direct.status, through.status) == (200, 503)


def _json_wanted(ask: Ask, direct: Reply, through: Reply) -> bool:
    return bool(ask.header("accept")) and direct.status == through.status >= 400 and not direct.code


def _empty_parameters(ask: Ask, direct: Reply, _through: Reply) -> bool:
    return (
        direct.code in ("AccessDenied", "SignatureDoesNotMatch", "")
        and direct.status == 403
        and set(ask.query) <= {"&", "="}
    )


OF_MOTO: tuple[Deviation, ...] = (
    *_OF_BOTH,
    Deviation(
        "stores the hash that an upload was signed with, and tells it to every reader", _always, frozenset({_SHA256})
    ),
    Deviation("tells in a 304 what belongs to a 200, and not what RFC 9110 wants there", _both_not_modified),
    Deviation("tells the object's headers in a refusal, but no Content-Range", _both_refused),
)

OF_RADOSGW: tuple[Deviation, ...] = (
    *_OF_BOTH,
    Deviation("takes the last no bytes (-0) for the whole object", _no_bytes),
    Deviation(
        'sends a body after the header of "HEAD ?acl", which the gateway takes for a broken answer', _body_of_a_head
    ),
    Deviation("renders errors as JSON for clients that accept it; the gateway forwards no Accept header", _json_wanted),
    Deviation("takes empty query parameters for unsigned ones", _empty_parameters),
    Deviation(
        "tells nothing in a 304", _not_modified, frozenset({"etag", "last-modified", "cache-control", "expires"})
    ),
    Deviation("tells no Content-Range in a 416", _both_refused, frozenset({"content-range", "accept-ranges"})),
)
