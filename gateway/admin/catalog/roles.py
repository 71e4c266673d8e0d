"""Roles of admin tokens: what the holder of a token may do."""

from __future__ import annotations

from enum import StrEnum


class TokenRole(StrEnum):
    """A role; each allows what those before it allow."""

    VIEWER = "viewer"
    """Reads everything, and changes nothing."""
    OPERATOR = "operator"
    """Runs the fleet: nodes, space, warm-ups, purges. Cannot grant access."""
    ADMIN = "admin"
    """Everything, such as credentials, rules and tokens."""

    def allows(self, needed: TokenRole) -> bool:
        """Whether this role may do what needs that one."""
        ranks = list(TokenRole)
        return ranks.index(self) >= ranks.index(needed)
