"""Templates of heads (gateway/server/template.py): what matches one parses as the template says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.parsing import BadRequest, RequestParser
from gateway.server.template import Patience, Template

DATE, SIGNATURE = b"20261128T101112Z", b"0123456789abcdef" * 4
SDK_ID = b"6f9619ff-8b86-d011-b42d-00cf4fc964ff"
LINES = (
    b"Host: 127.0.0.1:9000", b"Accept-Encoding: identity", b"User-Agent: Boto3/1.43 md/Botocore#1.43 ua/2.1",
    b"X-Amz-Date: " + DATE, b"X-Amz-Content-SHA256: UNSIGNED-PAYLOAD",
    b"Authorization: AWS4-HMAC-SHA256 Credential=AK/20261128/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, "
    b"Signature=" + SIGNATURE,
    b"amz-sdk-invocation-id: " + SDK_ID, b"amz-sdk-request: attempt=1",
)  # fmt: skip


def head(path: bytes = b"/bucket/dir/key-1", *more: bytes, lines: tuple[bytes, ...] = LINES) -> bytes:
    """A head as an SDK sends it."""
    return b"GET %b HTTP/1.1\r\n%b\r\n\r\n" % (path, b"\r\n".join((*lines, *more)))


class Heard:
    """Records what a parser says."""

    def __init__(self) -> None:
        self.requests: list[object] = []

    def on_request(self, method, target, version, headers, keep_alive, expects, ended) -> None:
        """A head is complete."""
        self.requests.append((method, target, version, headers, keep_alive, expects))

    def on_piece(self, piece: bytes) -> None:
        """A piece of a body."""
        self.requests.append(piece)

    def on_end(self) -> None:
        """A request is complete."""


def parsed(data: bytes, *, plainly: bool = False) -> list[object]:
    """What the parser finds in bytes that arrive at once; byte by byte, the first way of the parser is not used."""
    heard = Heard()
    parser = RequestParser(heard)
    try:
        for piece in (data,) if plainly else (data[:1], data[1:]):
            parser.feed(piece)
    except BadRequest as refused:
        heard.requests.append(refused.code)
    return [*heard.requests, "unfinished"] if parser.in_head else heard.requests


def made(data: bytes) -> Template:
    """The template of a head, which the parser accepts."""
    assert len(parsed(data, plainly=True)) == 1
    template = Template.of(data)
    assert template is not None
    return template


def assert_parses_alike(template: Template, data: bytes) -> bool:
    """If bytes match, the parser finds in them what the template says; returns whether they do."""
    match = template.match(data)
    if match is None:
        return False
    path, values = match
    assert parsed(data) == [("GET", (path, b""), "1.1", template.headers(values), True, False)]
    return True


def test_another_path_date_signature_and_id_match() -> None:
    """Rule: what SDKs change from one read to the next does not need the parser."""
    other = (
        head(b"/b/a._~-9").replace(DATE, b"20261129T000000Z").replace(SIGNATURE, b"f" * 64).replace(SDK_ID, b"0" * 36)
    )
    assert assert_parses_alike(made(head()), other)


@pytest.mark.parametrize("value", [b"bytes=0-0", b"bytes=1048576-2097151", b"bytes=-5", b"bytes=7-"])
def test_a_range_of_any_length_matches(value: bytes) -> None:
    """Rule: the value of Range is a slot of any length, wherever the header is."""
    ranged = made(head(b"/b/k", b"Range: bytes=0-65535", b"Accept: */*"))
    assert assert_parses_alike(ranged, head(b"/b/other", b"Range: " + value, b"Accept: */*"))
    first = made(head(b"/b/k", lines=(b"range: bytes=0-9", *LINES)))
    assert assert_parses_alike(first, head(b"/b/other", lines=(b"range: " + value, *LINES)))


HOSTILE = {
    "two heads": head() + head(),
    "a second head inside the path": b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" + head(),
    "a body behind": head() + b"x",
    "half a head": head()[:-2],
    "another method": b"PUT" + head()[3:],
    "HEAD": b"HEAD" + head()[3:],
    "HTTP/1.0": head().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a query": head(b"/bucket/key?acl"),
    "an escape": head(b"/bucket/%6bey"),
    "an escaped slash": head(b"/bucket/a%2Fb"),
    "a plus": head(b"/bucket/a+b"),
    "a fragment": head(b"/bucket/a#b"),
    "a backslash": head(b"/bucket/a\\b"),
    "a high byte": head(b"/bucket/\xc3\xa9"),
    "a tab in the path": head(b"/bucket/a\tb"),
    "an absolute target": head(b"http://127.0.0.1:9000/bucket/key"),
    "an asterisk": head(b"*"),
    "no path": head(b""),
    "a longer head": head(b"/b/" + b"k" * 9000),
    "another host": head().replace(b":9000", b":9001"),
    "an additional header": head(b"/b/k", b"Range: bytes=0-1"),
    "a header fewer": head(lines=LINES[:-1]),
    "headers in another order": head(lines=LINES[::-1]),
    "a header twice": head(b"/b/k", LINES[0]),
    "another spelling": head().replace(b"Host", b"host"),
    "a line feed in the signature": head().replace(SIGNATURE, b"a" * 30 + b"\r\nX-Evil: 1\r\n" + b"b" * 21),
    "a bare line feed in the date": head().replace(DATE, b"20261128\n101112Z"),
    "a space in the date": head().replace(DATE, b"2026112 T101112Z"),
    "a comma in the id": head().replace(SDK_ID, b"," * 36),
    "a shorter signature": head().replace(SIGNATURE, SIGNATURE[:-1]),
    "a longer date": head().replace(DATE, DATE + b"0"),
    "white space after a value": head().replace(DATE, DATE + b" "),
    "a length": head(b"/b/k", b"Content-Length: 3"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_anything_else_is_left_to_the_parser(name: str) -> None:
    """Rule: a head that differs in anything but the slots does not match."""
    assert made(head()).match(HOSTILE[name]) is None


@pytest.mark.parametrize(
    "value",
    [b"bytes=0-1,3-4", b"bytes=0-1 ", b"items=0-1", b"Bytes=0-1", b"bytes=a-b", b"", b"bytes=0-1\r\nHost: evil"],
)
def test_an_unusual_range_is_left_to_the_parser(value: bytes) -> None:
    """Rule: a slot of any length takes only its own alphabet."""
    assert made(head(b"/b/k", b"Range: bytes=0-65535")).match(head(b"/b/k", b"Range: " + value)) is None


def test_only_a_signed_and_dated_head_has_a_template() -> None:
    """Rule: anonymous heads, and those signed in another way, always take the general path."""
    for unusual in (
        LINES[:3],
        LINES[:5],
        (*LINES[:3], *LINES[4:]),
        (LINES[0], LINES[3], b"Authorization: AWS AK:c2ln"),
    ):
        assert Template.of(head(lines=unusual)) is None


def test_templates_that_are_not_used_are_made_less_and_less_often() -> None:
    """Rule: over a connection whose heads alternate between shapes, making templates costs next to nothing; one that is used
    gives way at once."""
    patience = Patience()
    assert sum(patience.gives_way() for _ in range(1000)) == 9
    patience.answered = 8
    assert patience.gives_way()


EDITS = st.tuples(
    st.sampled_from(["replace", "insert", "delete", "repeat", "swap"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 20),
    st.one_of(st.sampled_from([b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\0", b"%41", b"/", b"a", b"0", b"\xff", b"\r\n\r\n"]),
              st.binary(max_size=4)),
)  # fmt: skip


def edited(data: bytes, edits: list[tuple[str, float, int, bytes]]) -> bytes:
    """A head with small changes anywhere."""
    for kind, where, count, piece in edits:
        at = int(where * len(data))
        if kind == "replace":
            data = data[:at] + piece + data[at + len(piece) :]
        elif kind == "insert":
            data = data[:at] + piece + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + count :]
        elif kind == "repeat":
            data = data[: at + count] + data[at:]
        else:
            data = data[:at] + data[at : at + count][::-1] + data[at + count :]
    return data


@given(st.lists(EDITS, min_size=1, max_size=3), st.booleans())
def test_whatever_matches_parses_as_the_template_says(edits: list[tuple[str, float, int, bytes]], ranged: bool) -> None:
    """Rule: of heads with any small change, those that match are read alike by the template and by the general parser."""
    base = head(b"/bucket/key", b"Range: bytes=0-65535") if ranged else head()
    assert_parses_alike(made(base), edited(base, edits))


SLOT = st.text("ABCXYZabcxyz0189-", min_size=64, max_size=64).map(str.encode)


@given(st.text("abcXYZ019-._~/", max_size=40), SLOT, st.from_regex(r"\Abytes=[0-9-]{0,40}\Z"))
def test_slots_within_their_alphabets_parse_alike(key: str, slot: bytes, value: str) -> None:
    """Rule: whatever its slots hold within their alphabets, a head that matches is accepted by the general parser."""
    base = head(b"/bucket/key", b"Range: bytes=0-65535")
    other = head(b"/" + key.encode(), b"Range: " + value.encode()).replace(DATE, slot[:16]).replace(SIGNATURE, slot)
    assert assert_parses_alike(made(base), other)
