"""`larder-gateway datasets show` of a dataset that is kept by importance."""

from __future__ import annotations

from tests.cli.fake_admin import OVERVIEW
from tests.cli.test_cli_answers import paged

TENTH = {"reads": 0, "read_share": 0.0, "hit_ratio": None}
LESS = {"reads": 100, "read_share": 0.1, "hit_ratio": 0.5}
MOST = {"reads": 900, "read_share": 0.9, "hit_ratio": 0.98}
IMPORTANCE = {
    "threshold": 4.25,
    "partial": True,
    "jobs": {"vision/train": 0.75, "speech/train": 0.25},
    "scored": 1_281_167,
    "tenths": [*[TENTH] * 8, LESS, MOST],
    "unscored": TENTH,
}


def test_tenths_are_shown_with_the_most_important_first(admin, operator):
    """Rule: threshold, jobs with their weights, ghost list, and share of reads and hits by tenths are printed."""
    (first, *_) = OVERVIEW["datasets"]
    admin.answers["GET datasets"] = paged(first)
    admin.answers[f"GET datasets/{first['id']}"] = {**first, "importance": IMPORTANCE}
    ran = operator("datasets", "show", first["id"])
    assert ran.status == 0
    for said in ("importance, in part", "4.25", "vision/train 75", "1,281,167"):
        assert said in ran.out
    rows = [line.split() for line in ran.out.splitlines() if line.startswith(("tenth", "not scored"))]
    assert [row[:2] for row in rows[:2]] == [["tenth", "1"], ["tenth", "2"]]
    assert "900" in rows[0]
    assert len(rows) == 11
