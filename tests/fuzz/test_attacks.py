"""Bad input of every kind against a real gateway. ``python -m tests.fuzz`` runs for as long as desired."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rig.processes import wait_until
from tests.effort import same_each_time
from tests.fuzz.campaign import campaign
from tests.fuzz.corpus import SIGNED_CHUNKS, SIGNED_TRAILER, UNSIGNED_TRAILER, chunks_of, raw, sign, upload, url
from tests.fuzz.repeated import repeat
from tests.fuzz.rereadings import reread
from tests.fuzz.world import BODIES, BUCKET, World

BODY = BODIES[3]
FORMS = [SIGNED_CHUNKS, SIGNED_TRAILER, UNSIGNED_TRAILER]


def test_mutated_requests_break_nothing(target: World) -> None:
    """Rule: no input causes a 5xx of the gateway, a hanging connection, a traceback, a file outside the cache, a connection to
    another host, or an object at the origin that no client completed."""
    statuses = campaign(target, 0, 400)
    # The attacks are of use only if some of them get through.
    assert statuses[200] > 10
    assert statuses[400] > 50
    assert statuses[403] > 20


def test_what_nobody_signed_reaches_no_origin(target: World) -> None:
    """Rule: the origin gets only signed values, for any additions in any spelling."""
    statuses = Counter(status for number in range(250) for status in reread(target, random.Random(number)))
    # The attacks prove something only if some of the requests reach the origin.
    assert statuses[200] > 20
    assert statuses[400] > 80
    assert statuses[403] > 10


def test_a_template_changes_no_answer(target: World) -> None:
    """Rule: a head that comes after others of its shape is answered as alone, whatever it says."""
    statuses = Counter(status for number in range(150) for status in repeat(target, random.Random(number)))
    # Some are accepted, and some are refused for what stands where a template does not parse.
    assert statuses[200] + statuses[206] > 5
    assert statuses[403] > 20
    assert statuses[400] > 20


def _swapped(frames: list[bytes]) -> list[bytes]:
    return [frames[1], frames[0], *frames[2:]]


FRAMINGS = {
    "truncated-in-a-chunk": lambda frames: [frames[0][:-100]],
    "no-last-chunk": lambda frames: frames[:4],
    "a-chunk-is-missing": lambda frames: frames[1:],
    "a-chunk-twice": lambda frames: [frames[0], *frames],
    "size-too-large": lambda frames: [b"9" + frames[0], *frames[1:]],
    "size-negative": lambda frames: [b"-" + frames[0], *frames[1:]],
    "size-with-prefix": lambda frames: [b"0x" + frames[0], *frames[1:]],
    "size-of-20-digits": lambda frames: [b"f" * 20 + frames[0], *frames[1:]],
    "size-missing": lambda frames: [b"\r\n", *frames],
    "endless-header": lambda frames: [frames[0].split(b"\r\n")[0] + b";a=" + b"b" * 5000 + b"\r\n", *frames[1:]],
    "bare-line-feeds": lambda frames: [frames[0].replace(b"\r\n", b"\n", 1), *frames[1:]],
    "extra-bytes-in-a-chunk": lambda frames: [frames[0][:-2] + b"xx\r\n", *frames[1:]],
    "nothing": lambda frames: [],
    "only-the-end": lambda frames: frames[-1:],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("story", FRAMINGS)
def test_bad_chunks_are_refused_and_never_stored(target: World, form: str, story: str) -> None:
    """Rule: an aws-chunked body with wrong framing gets a client error, and the origin stores nothing of it."""
    key = f"framing/{story}/{form}"
    head, frames = chunks_of(target, key, BODY, form, 20_000)
    answer = target.send([raw(head, b"".join(FRAMINGS[story](frames)))], complete=True)
    assert target.judge(answer)[-1:] in ([400], [403])
    assert key not in target.origin.buckets.objects[BUCKET]


@pytest.mark.parametrize("form", [SIGNED_CHUNKS, SIGNED_TRAILER])
def test_moved_chunks_are_refused(target: World, form: str) -> None:
    """Rule: each chunk's signature covers the one before, so chunks cannot change places."""
    key = f"moved/{form}"
    head, frames = chunks_of(target, key, BODY, form, 20_000)
    answer = target.send([raw(head, b"".join(_swapped(frames)))], complete=True)
    assert b"<Code>SignatureDoesNotMatch</Code>" in answer
    assert key not in target.origin.buckets.objects[BUCKET]


TRAILERS = {
    "missing": b"",
    "wrong": b"x-amz-checksum-crc32:AAAAAA==\r\n",
    "no-base64": b"x-amz-checksum-crc32:?\r\n",
    "twice": b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-checksum-crc32:AAAAAA==\r\n",
    "another": b"x-amz-copy-source:/bucket/plain.bin\r\n",
    "no-colon": b"x-amz-checksum-crc32\r\n",
    "binary": b"x-amz-checksum-crc32:\x00\xff\r\n",
    "too-long": b"x-amz-checksum-crc32:" + b"A" * 20_000 + b"\r\n",
}


@pytest.mark.parametrize("form", [SIGNED_TRAILER, UNSIGNED_TRAILER])
@pytest.mark.parametrize("story", TRAILERS)
def test_bad_trailers_are_refused_and_never_stored(target: World, form: str, story: str) -> None:
    """Rule: an unannounced or wrong trailer is an error of the client; nothing is stored."""
    key = f"trailer/{story}/{form}"
    head, frames = chunks_of(target, key, BODY, form, 20_000)
    answer = target.send([raw(head, b"".join([*frames[:-2], TRAILERS[story], frames[-1]]))], complete=True)
    assert target.judge(answer)[-1:] in ([400], [403])
    assert key not in target.origin.buckets.objects[BUCKET]


@pytest.mark.parametrize("form", FORMS)
def test_good_chunks_are_stored(target: World, form: str) -> None:
    """Rule: the refusals above are for the damage: the same requests undamaged are accepted."""
    head, frames = chunks_of(target, f"good/{form}", BODY, form, 20_000)
    assert target.judge(target.send([raw(head, b"".join(frames))], complete=True)) == [200]
    assert target.origin.buckets.objects[BUCKET][f"good/{form}"].body == BODY


_PERCENT = st.binary(max_size=30).map(
    lambda data: "".join(f"%{byte:02x}" if byte % 3 else chr(byte % 26 + 97) for byte in data)
)
_VALUE = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=40).map(str.strip)
_NAMES = st.sampled_from(
    [
        "range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "cache-control", "te",
        "content-type", "content-md5", "origin", "content-encoding", "x-amz-meta-a", "x-amz-copy-source", "x-amz-acl",
        "x-amz-tagging", "x-amz-checksum-sha256", "x-amz-checksum-mode", "x-amz-decoded-content-length", "x-amz-trailer",
        "x-amz-server-side-encryption-customer-algorithm", "accept-encoding",
    ]
)  # fmt: skip


@same_each_time(150)
@example(method="GET", path="/bucket/%2e%2e/%2e%2e/etc/passwd", query="X-Amz-Expires=--5", headers={}, body=b"")
@example(
    method="PUT", path="/bucket/a", query="partNumber=%C2%B2&uploadId=", headers={"range": "bytes=\xb2-"}, body=b"x"
)
@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"]),
    path=st.builds(
        "/{}{}{}".format,
        st.sampled_from(["bucket", "", "nobucket", "-"]),
        st.sampled_from(["/", "//", "/../", ""]),
        _PERCENT,
    ),
    query=st.lists(st.builds("{}={}".format, _PERCENT, _PERCENT), max_size=3).map("&".join),
    headers=st.dictionaries(_NAMES, _VALUE, max_size=4),
    body=st.binary(max_size=200),
)
def test_whatever_is_signed_gets_an_answer(
    target: World, method: str, path: str, query: str, headers: dict[str, str], body: bytes
) -> None:
    """Rule: a signed, well-formed request gets an answer without an error of the gateway."""
    if method not in ("PUT", "POST"):
        body = b""
    answer = target.send([raw(sign(target, method, path, query, headers), body)], complete=True)
    assert target.judge(answer), answer


def test_broken_connections_leave_nothing_behind(target: World) -> None:
    """Rule: after hundreds of connections that broke in heads, bodies and answers, descriptors, files and memory are as
    before."""
    rng = random.Random(4)
    target.send([raw(sign(target, "GET", f"/{BUCKET}/plain.bin", "", {}))])
    before, memory = target.descriptors(), target.memory()
    large = raw(sign(target, "PUT", f"/{BUCKET}/unsigned", "", {}), bytes(3_000_000))
    for number in range(600):
        data = large if number % 20 == 0 else upload(target, rng)
        target.send([data[: rng.randrange(1, len(data))]], reset=number % 2 == 0, patient=False)
    tmp = target.gateway.config.parent / "cache" / "tmp"
    # Connections to the origin are kept for a while.
    wait_until(lambda: target.descriptors() <= before + 4, 60, "the return of the descriptors")
    assert list(tmp.iterdir()) == []
    assert target.memory() - memory < 64 * 1024**2
    assert target.judge(target.send([raw(target.signer.header("GET", url(target, "plain.bin")))], complete=True)) == [
        200
    ]
