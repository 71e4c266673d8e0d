"""Mutated heads on a connection that has a template (gateway/server/template.py), and the same on one that has none.

A connection makes a template of the first head that its parser accepts alone. So a signed read comes first, then others of the
same shape, then the mutated head. The template decides nothing but the way: both connections get the same answer.
"""

from __future__ import annotations

import random
import re

from tests.fuzz.corpus import raw, url
from tests.fuzz.mutations import MUTATIONS, pieces_of
from tests.fuzz.world import Broken, World

SLOTS = (b"/", b"AWS4-HMAC-SHA256 ", b"Signature=", b"x-amz-date: ", b"bytes=", b"/bucket/")
"""What stands before the parts of a head that may differ."""
_VOLATILE = re.compile(
    rb"(?im)^(connection|date|x-amz-request-id|x-larder-request-id|x-larder-cache|age):[^\r]*\r\n|<RequestId>[^<]*</RequestId>"
)
"""What differs from answer to answer."""


def repeat(world: World, rng: random.Random) -> list[int]:
    """Attack one connection, compare with another, and return the statuses of the answer.

    Raises:
        Broken: the answers differ, or something that must hold did not.
    """
    extra = rng.choice(
        [{}, {}, {"Range": "bytes=3-9"}, {"amz-sdk-invocation-id": "6f9619ff-8b86-d011-b42d-00cf4fc964ff"}]
    )
    # Ranges of the large object come from a block's file, and from compiled code.
    keys = rng.choice([("plain.bin", "empty"), ("plain.bin", "empty"), ("large.bin",)])
    heads = [raw(world.signer.header("GET", url(world, key), extra)) for key in rng.choices(keys, k=4)]
    odd = heads.pop()
    for _ in range(rng.choice([1, 1, 2])):
        odd = _in_a_slot(odd, rng) if rng.random() < 0.6 else rng.choice(MUTATIONS)(odd, rng, world.stranger) or b"\r\n"
    pieces = pieces_of(odd, rng)
    world.send(pieces)  # loads the object: a miss has its headers in another order
    plain = world.send(pieces)
    after = world.send(pieces, before=heads)
    # A gateway may leave out answers to what stands behind the first request when its client stops sending.
    shorter, longer = sorted((_settled(plain), _settled(after)), key=len)
    if not longer.startswith(shorter):
        raise Broken(
            f"another answer after heads of one shape: {after[:600]!r}, alone {plain[:600]!r}; sent: {odd[:1500]!r}"
        )
    return world.judge(after)


def _in_a_slot(head: bytes, rng: random.Random) -> bytes:
    """Change a few bytes where a template looks at nothing but the alphabet; anywhere if no such place is left."""
    places = [head.find(slot) + len(slot) for slot in SLOTS if slot in head] or [0]
    at = rng.choice(places) + rng.randrange(64)
    new = bytes(rng.choice(b"abcXYZ0189-._~/%=:;, \t\r\n\x00\x80") for _ in range(rng.randrange(1, 4)))
    gone = rng.choice([len(new), len(new), 0])
    return head[:at] + new + head[at + gone :]


def _settled(answer: bytes) -> bytes:
    return _VOLATILE.sub(b"", answer)
