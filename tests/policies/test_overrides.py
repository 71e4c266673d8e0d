"""Operators' overrides as the catalog's rows have them."""

from __future__ import annotations

from gateway.policies.space.overrides import Overrides, pipeline_name


def test_rows_are_sorted_by_what_they_concern() -> None:
    """Rule: modes and quotas are those of datasets and pools; pipelines are by job; a row that was reset says nothing."""
    rows = [("a", "pin", None), ("b", None, 5), ("c", None, None), (pipeline_name("t/j"), "pin:2", None)]
    overrides = Overrides.of(rows)
    assert overrides == Overrides({"a": "pin"}, {"b": 5}, {"t/j": "pin:2"})
    assert overrides.names == {"a", "b"}


def test_an_unknown_mode_is_ignored() -> None:
    """Rule: a mode of a later version leaves the decision to the manager; its quota holds."""
    assert Overrides.of([("a", "perhaps", 5), ("b", "pin:0", None)]) == Overrides({}, {"a": 5})


def test_pins_are_prefixes() -> None:
    """Rule: a pinned prefix has its quota's bytes, one that is denied space none; a pin without bytes is no pin."""
    rows = [("stream:b/x/", "pin", 7), ("stream:b/y/", "never", None), ("stream:b/z/", "pin", None), ("d", "pin", 7)]
    assert Overrides.of(rows).pins == {"b/x/": 7, "b/y/": 0}
