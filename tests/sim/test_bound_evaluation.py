"""The cases of the evaluation that compares reads of the origin with the bound."""

from lab.evaluation.bound import CASES


def test_jobs_beside_the_bound_may_substitute():
    """Rule: no case of the bound follows orders exactly; jobs that do cannot share all their reads."""
    assert [case.name for case in CASES if case.exact] == []
