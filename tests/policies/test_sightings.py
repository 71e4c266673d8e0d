"""Strict differences between what passes and what is cached."""

from __future__ import annotations

import pytest

from gateway.model.objects import ObjectMeta
from gateway.model.s3.listings import SeenVersion
from gateway.policies.reads.sightings import differs

META = ObjectMeta('"e"', 5, "Sat, 01 Nov 2025 10:00:00 GMT")
AT = 1761991200.0


@pytest.mark.parametrize(
    "sighting",
    [
        SeenVersion("k", '"e"', 5, AT),
        SeenVersion("k", "e", 5, AT + 0.999),
        SeenVersion("k", '"e"', 5, AT - 1),
        SeenVersion("k"),
        SeenVersion("k", size=5),
    ],
)
def test_the_same_version_differs_in_nothing(sighting: SeenVersion) -> None:
    """Rule: missing facts, missing quotes and the rounding of times are no difference."""
    assert not differs(META, sighting)


@pytest.mark.parametrize(
    "sighting",
    [
        SeenVersion("k", '"f"', 5, AT),
        SeenVersion("k", '"e"', 6, AT),
        SeenVersion("k", '"e"', 5, AT + 1.5),
        SeenVersion("k", '"e"', 5, AT - 3600),
        SeenVersion("k", gone=True),
    ],
)
def test_another_version_differs(sighting: SeenVersion) -> None:
    """Rule: another ETag, size or time, or none, is another version."""
    assert differs(META, sighting)
