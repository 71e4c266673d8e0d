"""Strict differences between what passes and what is cached."""

from __future__ import annotations

import pytest

from gateway.model.objects import ObjectMeta
from gateway.model.s3.listings import Sighting
from gateway.policies.reads.sightings import differs

META = ObjectMeta('"e"', 5, "Sat, 01 Nov 2025 10:00:00 GMT")
AT = 1761991200.0


@pytest.mark.parametrize(
    "sighting",
    [
        Sighting("k", '"e"', 5, AT),
        Sighting("k", "e", 5, AT + 0.999),
        Sighting("k", '"e"', 5, AT - 1),
        Sighting("k"),
        Sighting("k", size=5),
    ],
)
def test_the_same_version_differs_in_nothing(sighting: Sighting) -> None:
    """Rule: missing facts, missing quotes and the rounding of times are no difference."""
    assert not differs(META, sighting)


@pytest.mark.parametrize(
    "sighting",
    [
        Sighting("k", '"f"', 5, AT),
        Sighting("k", '"e"', 6, AT),
        Sighting("k", '"e"', 5, AT + 1.5),
        Sighting("k", '"e"', 5, AT - 3600),
        Sighting("k", gone=True),
    ],
)
def test_another_version_differs(sighting: Sighting) -> None:
    """Rule: another ETag, size or time, or none, is another version."""
    assert differs(META, sighting)
