"""One gateway, a counting origin and real readers beside what arithmetic says they must get (lab/benchmarks/closed_forms.py)."""

from pathlib import Path

import pytest

from lab.benchmarks.closed_forms import lru_epochs, lru_hit_ratio, static_epochs
from tests.loader.systems import system


@pytest.mark.parametrize("substitute", [1, 10, 100])
def test_a_part_hits_exactly_what_is_cached(tmp_path: Path, substitute: int) -> None:
    """Each item is read once per epoch, so the hit ratio is the resident fraction for any look-ahead; the rest is read from the
    origin, once."""
    with system(tmp_path, 0.3, items=100) as there:
        filling, *later = static_epochs(there, substitute, 3)
    assert filling["hits"] == 0
    for epoch in later:
        assert 0.2 < epoch["resident"] < 0.35
        assert epoch["hits"] == pytest.approx(epoch["resident"])
        assert epoch["reads"] == pytest.approx(1 - epoch["resident"])


def test_plain_reads_hit_what_lru_hits(tmp_path: Path) -> None:
    """Over random epochs LRU hits c + (1 - c) ln(1 - c), averaged over the cache's sizes between its watermarks: far below the c
    of a cache that never evicts."""
    with system(tmp_path, 0.5, items=150) as there:
        found = lru_epochs(there, 7)
    # 900 reads: the deviation of the sample is 0.012 at most.
    assert found["hits"] == pytest.approx(found["expected"], abs=0.06)
    assert found["hits"] < lru_hit_ratio(found["largest"]) + 0.06 < found["smallest"]
