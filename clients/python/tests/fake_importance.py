"""A fake gateway's importance by the contract: decoded parts, applied to scores by item."""

import json
import zlib
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from fake_gateway import Asked, Handler

from larder.training.importance_wire import HEADER, OF_ALL, WHOLE


@dataclass(frozen=True)
class ReceivedPart:
    """One decoded part: scores and counts by item."""

    sequence: int
    base: int
    whole: bool
    of_all: bool
    epoch: int
    items: int
    scores: dict[int, float]
    counts: dict[int, int]


def decode(body: bytes) -> ReceivedPart:
    """Decode a part, in the plainest way."""
    magic, version, flags, sequence, base, epoch, items, rows = HEADER.unpack_from(body)
    assert (magic, version) == (b"LDIM", 2)
    plain = zlib.decompress(body[HEADER.size :])
    assert len(plain) == 7 * rows
    planes = [plain[start : start + rows] for start in range(0, 7 * rows, rows or 1)] or [b""] * 7
    ids = list(accumulate(int.from_bytes(four, "little") for four in zip(*planes[:4], strict=True)))
    scores = {
        item: float(np.frombuffer(bytes(two), "<f2")[0])
        for item, two in zip(ids, zip(*planes[4:6], strict=True), strict=True)
        if two != (0xFF, 0xFF)
    }
    counts = {item: count for item, count in zip(ids, planes[6], strict=True) if count}
    return ReceivedPart(sequence, base, bool(flags & WHOLE), bool(flags & OF_ALL), epoch, items, scores, counts)


@dataclass
class FakeImportance:
    """Serves ``PUT .../importance``: ``parts`` came, ``refusals`` are answered first (status and code), ``scores`` are known."""

    parts: list[ReceivedPart] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)
    listed: dict[int, int] = field(default_factory=dict)
    held: int = 0
    datasets: list[str] = field(default_factory=list)

    def __call__(self, handler: Handler, asked: Asked) -> None:
        """Answer one part."""
        part = decode(asked.body)
        self.parts.append(part)
        self.datasets.append(asked.query["dataset"])
        if self.refusals:
            handler.send_problem(*self.refusals.pop(0))
        elif part.sequence == self.held:
            self._accept(handler)
        elif not part.whole and part.base != self.held:
            problem = {"code": "unknown-base", "detail": "send it whole", "sequence": self.held}
            handler.send(409, json.dumps(problem).encode(), Content_Type="application/problem+json")
        else:
            self.scores = dict(part.scores) if part.whole else {**self.scores, **part.scores}
            self.listed, self.held = part.counts, part.sequence
            self._accept(handler)

    def forget(self) -> None:
        """Lose all scores, as in a restart."""
        self.scores, self.listed, self.held = {}, {}, 0

    def _accept(self, handler: Handler) -> None:
        handler.send_json({"sequence": self.held, "items": len(self.scores)})
