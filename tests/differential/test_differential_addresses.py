"""Gateway and origin answer alike for every caller, target and spelling of a request."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rig.origin import FakeOrigin
from tests.differential.asks import Ask
from tests.differential.corpus import BLOCK, Object, by_key
from tests.differential.generator import FORMS, Known, reads, respelled
from tests.differential.sides import Sides


def _spellings(rng: random.Random, known: Known) -> list[Ask]:
    plain = known.ask()
    return [
        plain,
        known.ask("HEAD"),
        replace(plain, headers=(("Range", "bytes=3-9"),)),
        replace(plain, style="host"),
        replace(plain, query="x-id=GetObject"),
        *(replace(plain, key=respelled(rng, plain.key)) for _ in range(2)),
        *(replace(plain, form=form, style=style) for form in FORMS for style in ("path", "host")),
    ]


def test_every_key_in_every_spelling(sides: Sides, rng: random.Random) -> None:
    """Each key leads to its own object, however it is percent-encoded, addressed and signed."""
    for known in sides.store(by_key(rng)):
        sides.compare_in_states(known, _spellings(rng, known), cold=3)
    assert sides.ledger.seen("HIT") > 500


def test_keys_that_look_alike_are_different_objects(sides: Sides, rng: random.Random) -> None:
    """With all objects cached, a key with a cached look-alike still gets the origin's answer."""
    stored = sides.store(by_key(rng))
    for known in stored:
        sides.warm(known)
    for _ in range(3):
        for known in rng.sample(stored, len(stored)):
            sides.compare("all warm", known.ask(rng.choice(["GET", "HEAD"])))


@pytest.mark.parametrize("form", ["header", "presigned", "presigned-v2"])
def test_a_bare_plus_means_what_the_origin_says(sides: Sides, rng: random.Random, form: str) -> None:
    """Stores disagree on whether "+" in a path is a space, so the origin answers, even if an object is cached."""
    stored = sides.store([Object("a+b", b"plus"), Object("a b", b"space")])
    for known in stored:
        sides.warm(known)
    for method in ("GET", "HEAD"):
        reply = sides.compare("warm", Ask(method, sides.bucket, "a+b", form=form))
        assert reply.cache == "BYPASS; reason=encoding"


def test_what_is_not_there(sides: Sides) -> None:
    """Missing objects and buckets, and impossible names, get the origin's error, every time."""
    missing = [
        Ask("GET", sides.bucket, "nothing"),
        Ask("GET", sides.bucket, "nothing/at%20all"),
        Ask("GET", "no-such-bucket", "key"),
        Ask("GET", "no-such-bucket"),
        Ask("GET", sides.bucket, "x" * 1024),
        Ask("GET", sides.bucket, "nothing", headers=(("Range", "bytes=0-1"),)),
        Ask("GET", sides.bucket, "nothing", headers=(("If-None-Match", "*"),)),
        Ask("GET", sides.bucket, "nothing", headers=(("If-Match", "*"),)),
        Ask("GET", sides.bucket, "nothing", query="response-content-type=a"),
        Ask("GET", sides.bucket, "nothing", query="versionId="),
        Ask("GET", sides.bucket, "nothing", query="partNumber=1"),
        Ask("GET", sides.bucket, "nothing", form="presigned"),
        Ask("GET", sides.bucket, "nothing", style="host"),
        Ask("GET", sides.bucket, "nothing", form="anonymous"),
    ]
    for ask in missing:
        for method in ("GET", "HEAD"):
            for state in ("first", "again"):
                sides.compare(state, replace(ask, method=method))


def test_an_object_made_after_it_was_missed(sides: Sides) -> None:
    """A missing object is not cached as missing: once created behind the gateway, it is served at once."""
    for number in range(5):
        ask = Ask("GET", sides.bucket, f"late/{number}")
        assert sides.compare("missing", ask).status == 404
        sides.store([Object(f"late/{number}", b"here")])
        assert sides.compare("made", ask).status == 200


def test_buckets_and_lists(sides: Sides, rng: random.Random) -> None:
    """Requests about buckets are the origin's to answer, and come back unchanged."""
    names = [item.key for item in by_key(rng) if "\n" not in item.key and "\0" not in item.key]
    sides.store(Object(key, b"x") for key in names)
    queries = [
        "list-type=2", "list-type=2&prefix=sch%C3%B6n", "list-type=2&delimiter=/", "list-type=2&max-keys=0",
        "list-type=2&max-keys=1", "list-type=2&max-keys=3&delimiter=/", "list-type=2&encoding-type=url",
        "list-type=2&start-after=dots", "list-type=2&prefix=%2F&encoding-type=url", "location", "acl", "versioning", "unknown=1",
    ]  # fmt: skip
    asks = [Ask("GET", sides.bucket, query=query) for query in queries]
    asks += [replace(ask, form="presigned") for ask in asks] + [replace(ask, style="host") for ask in asks]
    asks += [
        Ask("HEAD", sides.bucket),
        Ask("GET", sides.bucket),
        Ask("GET", ""),
        Ask("GET", sides.bucket, form="anonymous"),
    ]
    for ask in asks:
        sides.compare("list", ask)


def test_everybody_sees_what_the_origin_lets_them(origin: FakeOrigin, sides: Sides, rng: random.Random) -> None:
    """Owners, strangers and the unsigned read the same cached objects, each with the origin's yes or no."""
    bodies = [rng.randbytes(3 * BLOCK + 7), b"small", b""]
    stored = sides.store(
        Object(f"{place}/{n}", body) for place in ("open", "shared", "own") for n, body in enumerate(bodies)
    )
    origin.public.append(f"{sides.bucket}/open/*")
    origin.deny("origin-key-b", f"{sides.bucket}/own/*")
    for state in ("cold", "after others"):
        for known in stored:
            for _ in range(6):
                (ask,) = reads(rng, known, 1)
                who = rng.choice(["a", "b", "nobody"])
                if who == "nobody":
                    amz = tuple(pair for pair in ask.headers if not pair[0].lower().startswith("x-amz-"))
                    ask = replace(ask, form="anonymous", headers=amz)
                else:
                    ask = replace(ask, who=who)
                sides.compare(f"{state}, {who}", ask)
    refused = [key for key in sides.ledger.caches if "refused" in key]
    assert refused
    assert sides.ledger.seen("HIT")
