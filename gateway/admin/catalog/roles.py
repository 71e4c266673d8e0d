"""Roles of admin tokens: the rights of a token's holder."""

from __future__ import annotations

from enum import StrEnum


class TokenRole(StrEnum):
    """A role; each includes the rights of those before it."""

    VIEWER = "viewer"
    """Reads everything, and changes nothing."""
    OPERATOR = "operator"
    """Runs the fleet: nodes, space, warm-ups, purges. Cannot grant access."""
    ADMIN = "admin"
    """Everything, such as credentials, rules and tokens."""

    def allows(self, needed: TokenRole) -> bool:
        """Whether this role includes that one."""
        ranks = list(TokenRole)
        return ranks.index(self) >= ranks.index(needed)
