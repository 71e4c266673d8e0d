"""Who makes a change, as the audit log names him."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Actor:
    """A caller whose token was right.

    ``name`` is the token's: ``admin`` or ``read``; ``address`` is the client's, as the socket has it; ``request_id`` is in the
    answer's header ``x-larder-request-id`` too.
    """

    name: str
    address: str
    request_id: str

    @property
    def may_change(self) -> bool:
        """Whether the token allows more than looking."""
        return self.name == "admin"
