"""Whether an origin can be reached, from its probes, and when to send the next probe.

    ANSWERS ──a probe fails──▶ REFUSES or SILENT ──a probe or a request is answered──▶ ANSWERS

Only probes lead away from ANSWERS: an unanswered request may be due to one slow object, but a probe reads no object. REFUSES
and SILENT differ in what another request costs: a refused request fails at once, an unanswered one waits for a time-out.
While the origin is lost, it is probed at doubling intervals, so that its return is noticed without a waiting reader.

The pattern is the circuit breaker of Nygard, *Release It!* (2007), chapter 5, with the half-open state played by the probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Contact(StrEnum):
    """The outcome of the last probe."""

    ANSWERS = "answers"
    REFUSES = "refuses"
    """No connection, or a broken one: the next request fails at once."""
    SILENT = "silent"
    """No answer in time: the next request waits for a time-out."""


@dataclass(frozen=True, slots=True)
class ProbePace:
    """Seconds from a failed probe to the next one: the first pause, and the longest."""

    first: float = 0.5
    longest: float = 4.0


class Reachability:
    """The state machine above.

    Attributes:
        contact: the last contact.
        pause: seconds to wait before the next probe; meaningful while the origin is lost.
    """

    def __init__(self, pace: ProbePace | None = None) -> None:
        self._pace = pace or ProbePace()
        self.contact = Contact.ANSWERS
        self.pause = self._pace.first

    @property
    def lost(self) -> bool:
        """Whether the origin cannot be reached."""
        return self.contact is not Contact.ANSWERS

    def found(self, contact: Contact) -> bool:
        """Record the contact of a probe or request; returns whether that changed the state of the origin."""
        was_lost = self.lost
        self.contact = contact
        if not self.lost or not was_lost:
            self.pause = self._pace.first
        else:
            self.pause = min(2 * self.pause, self._pace.longest)
        return self.lost is not was_lost
