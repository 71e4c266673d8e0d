"""Heads that are split by lines mean the same as by llhttp."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.server.parsing import BadRequest, RequestHead, RequestParser
from tests.effort import examples

SIGNED = (
    b"GET /bucket/a/key%20x?partNumber=1 HTTP/1.1\r\nHost: 127.0.0.1:9000\r\nUser-Agent: Boto3/1.40 md/Botocore#1.40  ua/2.1\r\n"
    b"X-Amz-Date: 20261123T100000Z\r\nX-Amz-Content-SHA256: UNSIGNED-PAYLOAD\r\nAccept-Encoding: identity\r\n"
    b"Connection: Keep-Alive\r\nAuthorization: AWS4-HMAC-SHA256 Credential=k/20261123/us-east-1/s3/aws4_request, Signature=00\r\n"
    b"Range: bytes=0-9 \r\n\r\n"
)
PIECES = (
    b"\r\n", b"\r", b"\n", b"\t", b" ", b":", b"\0", b"\x80", b"\xff", b"?", b"#", b"%", b"\"", b"_", b"GET / HTTP/1.1\r\n",
    b"HTTP/1.0", b"HTTP/1.1", b"Host: b\r\n", b"\r\n folded", b"Connection: close\r\n", b"Connection: upgrade\r\n",
    b"Upgrade: h2c\r\n", b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n",
    b"Empty:\r\n", b"http://b/", b"HEAD", b"",
)  # fmt: skip


class Heard:
    """What a parser says of the bytes it is given."""

    def __init__(self) -> None:
        self.events: list[RequestHead | bytes | None] = []

    def on_request(self, head: RequestHead) -> None:
        """A head."""
        self.events.append(head)

    def on_piece(self, piece: bytes) -> None:
        """A piece of a body."""
        if self.events and isinstance(self.events[-1], bytes):
            piece = self.events.pop() + piece
        self.events.append(piece)

    def on_end(self) -> None:
        """The end of a request."""
        self.events.append(None)


def parsed(pieces: list[bytes]) -> tuple[list[RequestHead | bytes | None], bool]:
    """The events, and whether the bytes were refused."""
    heard = Heard()
    parser = RequestParser(heard)
    try:
        for piece in pieces:
            parser.feed(piece)
    except BadRequest:
        return heard.events, True
    return heard.events, False


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """A request, changed in some places."""
    data = SIGNED
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(PIECES)) + data[at + draw(st.integers(0, 4)) :]
    return data


@given(heads(), st.integers(0, 1))
@example(SIGNED, 0)
@example(SIGNED * 3, 0)
@settings(max_examples=examples(300))
def test_a_head_means_the_same_whole_or_in_pieces(data: bytes, more: int) -> None:
    """Rule: a head that arrives in pieces is parsed by llhttp; one that arrives whole has the same meaning, and so has what
    follows it."""
    assert parsed([data, SIGNED] if more else [data]) == parsed([data[:1], data[1:], *([SIGNED] if more else [])])


def test_lines_that_differ_in_case_are_different() -> None:
    """Rule: values are kept as they were sent, also of lines that have been seen in another spelling."""
    for agent in (b"Agent", b"agent", b"AGENT"):
        (head, _), _ = parsed([b"GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: %b\r\n\r\n" % agent])
        assert isinstance(head, RequestHead)
        assert head.headers == [(b"host", b"h"), (b"user-agent", agent)]
