"""Progress of long work: a bar on a terminal, lines in a log."""

import io

import pytest

from larder.digest import building
from larder.digest.progress import Counts, Written, describe, duration


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


HALF = Counts(objects=5, bytes=5_000_000, of_objects=10, of_bytes=10_000_000, listing=False, read_bytes=5_000_000)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    """Set TERM to a capable terminal, wherever the tests run."""
    monkeypatch.setenv("TERM", "xterm")


def test_the_line_says_share_speed_and_time_left():
    """Half of 10 MB after 5 seconds: 1 MB/s and 5 seconds to go."""
    assert describe(HALF, 5.0) == "[############............]  50%  5/10 objects, 5.0 MB/10.0 MB, 1.0 MB/s, 00:05 left"


def test_totals_that_still_grow_are_marked():
    """While the listing runs the totals end in "+" and no time is promised."""
    line = describe(Counts(objects=1, of_objects=3, of_bytes=9, listing=True), 1.0)
    assert "1/3+ objects" in line
    assert "left" not in line


def test_what_did_not_have_to_be_read_is_told():
    """Unchanged objects are counted separately."""
    assert "4 unchanged" in describe(Counts(objects=4, of_objects=4, reused=4, listing=False), 1.0)


def test_nothing_to_do_is_all_done():
    """An empty listing is 100 %, not a division by zero."""
    assert "100%" in describe(Counts(listing=False), 0.0)


def test_a_terminal_is_redrawn_a_few_times_a_second():
    """One line, painted over, and not for every object."""
    stream, clock = Terminal(), Clock()
    shown = Written(stream, clock)
    for _ in range(100):
        clock.now += 0.05
        shown.update(HALF)
    shown.finish(HALF)
    assert 20 <= stream.getvalue().count("\r") <= 27
    assert stream.getvalue().count("\n") == 1


def test_a_log_gets_a_line_now_and_then():
    """Without a terminal, progress is printed as whole lines, half a minute apart, without carriage returns."""
    stream, clock = io.StringIO(), Clock()
    shown = Written(stream, clock)
    for _ in range(100):
        clock.now += 1
        shown.update(HALF)
    shown.finish(HALF)
    assert stream.getvalue().count("\n") == 3
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize(
    ("progress", "terminal", "term", "written"),
    [
        (None, True, "xterm", "\r"),
        (None, True, "dumb", ""),
        (None, False, "xterm", ""),
        (True, True, "xterm", "\r"),
        (True, False, "xterm", "\n"),
        (False, True, "xterm", ""),
    ],
)
def test_a_build_shows_a_bar_where_somebody_watches(monkeypatch, progress, terminal, term, written):
    """Rule: a terminal gets a bar by default, a log only on request, and neither if it is refused."""
    stream, clock = Terminal() if terminal else io.StringIO(), Clock()
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(Written.__init__, "__defaults__", (clock,))
    shown = building.progress_of(progress)
    clock.now += 40
    shown.update(HALF)
    assert stream.getvalue().strip(" \r\n") == (describe(HALF, 40.0) if written else "")
    assert written in stream.getvalue()


def test_a_shorter_line_hides_the_longer_one_before():
    """A shorter line covers all of the previous one on a terminal."""
    stream, clock = Terminal(), Clock()
    shown = Written(stream, clock)
    clock.now += 1
    shown.update(HALF)
    clock.now += 1000
    shown.update(Counts(listing=False))
    first, second = stream.getvalue().split("\r")[1:]
    assert len(second) >= len(first)


def test_durations_are_for_people():
    """Clock times."""
    assert [duration(n) for n in (5, 65, 3723)] == ["00:05", "01:05", "1:02:03"]
