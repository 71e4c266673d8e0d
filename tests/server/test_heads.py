"""A head that arrives whole and in its usual form is parsed in a shorter way, with the same result."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.server.parsing import BadRequest, RequestParser
from tests.effort import examples


class Requests:
    """Records requests, complete or not, as one value each."""

    def __init__(self) -> None:
        self.seen: list[list[object]] = []

    def on_request(self, *request: object) -> None:
        """A head is complete; the last argument says whether the request is."""
        self.seen.append([*request[:-1], b"", request[-1]])

    def on_piece(self, piece: bytes) -> None:
        """A piece of the last request's body."""
        self.seen[-1][-2] += piece  # type: ignore[operator]

    def on_end(self) -> None:
        """The last request is complete."""
        self.seen[-1][-1] = True


def _parsed(pieces: list[bytes]) -> tuple[list[list[object]], str]:
    """The requests, and the code of the refusal that ended the connection."""
    requests = Requests()
    parser = RequestParser(requests)
    try:
        for piece in pieces:
            parser.feed(piece)
    except BadRequest as refused:
        return requests.seen, refused.code
    return requests.seen, ""


USUAL = b"GET /b/k?versionId=1 HTTP/1.1\r\nHost: a\r\nX-Amz-Date: 20260101T000000Z\r\nRange: bytes=0-9\r\n\r\n"

WITH_BODY = b"PUT /b/k HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n\r\n\r\n"
NO_METHODS = [
    b"get /k HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GEX /k HTTP/1.1\r\nhost: a\r\n\r\n",
    b"POST! /k HTTP/1.1\r\nhost: a\r\n\r\n",
    b"NONSENSE\r\n\r\n",
    b"GETS /k\r\n\r\n",
    b"G\x00T /k HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01" + b"\0" * 20 + b"\n",
]
"""What begins with a method that does not exist, or is no request."""


@pytest.mark.parametrize(
    "data",
    [
        USUAL,
        USUAL + USUAL,
        USUAL + b"PUT /b/k HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc" + USUAL,
        b"\r\n" + USUAL,
        b"GET /k HTTP/1.1\r\nhost:a\r\nx-Y: 1\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a \r\nx: 1\t\r\ny:\r\nz: a b\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\r\nx: caf\xe9\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\r\nx: 1\r\nX: 2\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\r\nx: 1\r\nx: 2\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
        b"GET /k HTTP/1.1\r\nx: 1\r\n\r\n",
        b"GET /k HTTP/1.0\r\nhost: a\r\n\r\n",
        b"GET /k HTTP/1.2\r\nhost: a\r\n\r\n",
        b"GET  /k HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" + USUAL,
        b"GET /k HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" + USUAL,
        b"GET /k HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n\r\n\r\n" + USUAL,
        b"GET /k HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nt: u\r\n\r\n" + USUAL,
        b"GET /k HTTP/1.1\r\nhost: a\r\n folded\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\nx: 1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http://a/k HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /k HTTP/1.1\r\nhost: a\r\nbad name: 1\r\n\r\n",
        *NO_METHODS,
    ],
)
def test_requests_are_the_same_whole_and_in_pieces(data: bytes) -> None:
    """Rule: how a head arrives does not change what it means, or whether it is refused."""
    apart = [data[at : at + 1] for at in range(len(data))]
    assert _parsed([data]) == _parsed(apart)


@given(
    st.lists(st.sampled_from([USUAL, WITH_BODY, b"\r\n", *NO_METHODS]), min_size=1, max_size=4).map(b"".join),
    st.lists(st.integers(0, 400), max_size=6),
)
@settings(max_examples=examples(200))
def test_a_stream_has_one_meaning_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    """Rule: requests and refusals depend on the bytes, never on where the network has cut them."""
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    assert _parsed([data]) == _parsed([data[begin:end] for begin, end in pairwise(places)])


def test_a_request_line_without_an_end_is_refused() -> None:
    """Rule: a line that is held until it is complete has the bound of a head."""
    assert _parsed([b"get /" + b"y" * 1000] * 100) == ([], "RequestHeaderSectionTooLarge")


def test_requests_one_by_one_are_those_of_one_piece() -> None:
    """Rule: a connection may send usual requests and others in turn."""
    upload = b"PUT /b/k HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n"
    pieces = [USUAL, upload, b"\r\n\r\n", USUAL, USUAL[:20], USUAL[20:], USUAL]
    assert _parsed(pieces) == _parsed([b"".join(pieces)])
