"""Progress of long work: at a terminal, elsewhere, and while the gateway restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from gateway.commands.common.connection import Refused, Unreachable
from gateway.commands.common.progress import EVERY, OUTAGE, ProgressStep, Time, amounts, watch
from tests.cli.commands import at_terminal

WARMUP: dict[str, Any] = {
    "id": "ab" * 16, "access_key_id": "GWA", "bucket": "b", "prefix": "p/", "dataset": None, "state": "running", "node": "gw-2",
    "failure": "",
    "total": 4, "total_bytes": 4000, "done": 2, "done_bytes": 2000, "there": 0, "failed": 0, "examples": [],
    "created_at": "2026-11-20T20:00:00Z",
}  # fmt: skip
DONE = {**WARMUP, "state": "done", "done": 4, "done_bytes": 4000}


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.time = Time(lambda: self.seconds, self._pause)

    def _pause(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> Clock:
    """Such a time."""
    return Clock()


def answers(*given: Any) -> Callable[[], Any]:
    """Gives one after the other, then the last repeatedly; raises those that are errors."""
    left: Iterator[Any] = chain(given, repeat(given[-1]))

    def ask() -> Any:
        one = next(left)
        if isinstance(one, Exception):
            raise one
        return one

    return ask


def follow(ask: Callable[[], Any], clock: Clock) -> Any:
    """Follow the answers until the work has ended."""
    return watch(
        ask,
        lambda state: ProgressStep(state["at"], 100, f"{state['at']} of 100"),
        lambda state: state["at"] == 100,
        clock.time,
    )


def test_lines_elsewhere(clock, capsys):
    """Rule: without a terminal, long work prints a line every ten seconds on standard error; short work prints none."""
    assert follow(answers(*({"at": number} for number in range(101))), clock) == {"at": 100}
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [f"{at}%  {at} of 100" for at in (20, 40, 60, 80, 100)]


@pytest.mark.parametrize("away", [Unreachable("refused"), Refused(503, "ServiceUnavailable", "the catalog is away")])
def test_a_gateway_that_restarts(clock, away):
    """Rule: a gateway that does not answer, or cannot now, is asked again."""
    assert follow(answers({"at": 1}, *[away] * 20, {"at": 100}), clock) == {"at": 100}


def test_a_gateway_that_stays_away(clock):
    """Rule: following ends with an error after two minutes without an answer."""
    with pytest.raises(Unreachable):
        follow(answers({"at": 1}, Unreachable("refused")), clock)
    assert OUTAGE < clock.seconds <= OUTAGE + 3 * EVERY


def test_a_refusal_ends_it(clock):
    """Rule: a refusal of the gateway is reported at once."""
    with pytest.raises(Refused):
        follow(answers({"at": 1}, Refused(404, "NotFound", "no such warm-up")), clock)
    assert clock.seconds == EVERY


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((3, None, 1000, None, "objects"), "3 objects, 1.0 kB"),
        ((3, 1200, 1000, 2000, "items"), "3 of 1,200 items, 1.0 kB of 2.0 kB"),
        ((None, 0, None, 0, "objects"), "0 of 0 objects, 0 of 0 B"),
    ],
)
def test_amounts(given, said):
    """Rule: known totals are shown."""
    assert amounts(*given) == said


def test_a_bar_at_a_terminal(admin, variables):
    """Rule: at a terminal a bar shows the finished share and disappears at the end; the result stays."""
    asked = answers(WARMUP, DONE)
    admin.answers["POST warmups"] = lambda _: (
        202,
        {**WARMUP, "state": "queued", "total": None, "total_bytes": None, "done": 0},
    )
    admin.answers[f"GET warmups/{WARMUP['id']}"] = lambda _: (200, asked())
    ran = at_terminal("warm", "b/p/", "--as", "GWA", variables=variables)
    assert ran.status == 0
    assert "50%" in ran.out
    assert "2 of 4 objects" in ran.out
    assert ran.out.splitlines()[-2].endswith("b/p/: done, 4 of 4 objects, 4.0 kB of 4.0 kB")
    assert ran.out.splitlines()[-1] == "run by node gw-2"


def test_what_was_not_completed(admin, operator):
    """Rule: a warm-up that failed, or could not read everything, ends with 1: its node, examples (escaped), and how to go on."""
    failed = {
        **WARMUP, "state": "failed", "failure": "the origin cannot be reached", "failed": 1,
        "examples": [{"key": "p/\x1b[2J", "why": "refused"}],
    }  # fmt: skip
    admin.answers["POST warmups"] = lambda _: (202, WARMUP)
    admin.answers[f"GET warmups/{WARMUP['id']}"] = failed
    ran = operator("warm", "b/p/", "--as", "GWA")
    assert ran.status == 1
    assert ran.out.splitlines() == [
        "b/p/: failed, 2 of 4 objects, 2.0 kB of 4.0 kB, 1 failed",
        "run by node gw-2",
        "the origin cannot be reached",
        "  p/\\x1b[2J: refused",
    ]
    assert f"larder-gateway warm --resume {WARMUP['id']}" in ran.err
    admin.answers[f"GET warmups/{WARMUP['id']}"] = {**DONE, "failed": 1}
    assert operator("warm", "b/p/", "--as", "GWA").status == 1


def test_a_warm_up_without_a_total_says_its_state_once(admin, variables):
    """Rule: while queued it says what it waits for; the result has state and amounts, and does not count any more."""
    uncounted = {**WARMUP, "total": None, "total_bytes": None, "done": 0, "done_bytes": 0}
    asked = answers({**uncounted, "state": "queued"}, {**uncounted, "state": "failed"})
    admin.answers["POST warmups"] = lambda _: (202, uncounted)
    admin.answers[f"GET warmups/{WARMUP['id']}"] = lambda _: (200, asked())
    ran = at_terminal("warm", "b/p/", "--as", "GWA", variables=variables)
    assert "queued behind others, or until Redis can be reached" in ran.out
    assert "b/p/: failed, 0 objects, 0 B" in ran.out


def test_one_request_is_one_warm_up(admin, operator):
    """Rule: a creating request has an idempotency key, so repeating it creates nothing twice."""
    admin.answers["POST warmups"] = lambda _: (202, DONE)
    admin.answers[f"GET warmups/{WARMUP['id']}"] = DONE
    for _ in range(2):
        operator("warm", "b/p/", "--as", "GWA")
    keys = [asked.headers["idempotency-key"] for asked in admin.asked if asked.method == "POST"]
    assert len(set(keys)) == 2
