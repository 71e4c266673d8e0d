"""Where the origins of the tests are known to answer otherwise than S3: data, one reason each."""

from __future__ import annotations

from tests.differential.asks import Ask, Reply
from tests.differential.sameness import Deviation


def _empty_if_match(ask: Ask, _direct: Reply, _through: Reply) -> bool:
    return any(name.lower() == "if-match" and not value.strip() for name, value in ask.headers)


OF_FAKE: tuple[Deviation, ...] = (
    Deviation(
        "takes an empty If-Match for none; to the gateway, as to radosgw, it is a list without tags", _empty_if_match
    ),
)
