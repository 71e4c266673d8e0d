"""The role that each request under ``/-/admin`` needs: the only place that decides it.

Reading needs a viewer. A change needs an admin, unless its address is listed here as daily operation: an unlisted endpoint is
closed to operators rather than open. Only an admin may grant access or decide how everything is cached. The decision takes the
head of a request alone, so a body is never read for a caller who may not send it.
"""

from __future__ import annotations

from gateway.admin.catalog.roles import TokenRole

PREFIX = "/admin"
_SAFE = frozenset({"GET", "HEAD"})
_ASKING = frozenset({"/rules/check"})
"""POST endpoints that only query, because their input is too long for a URL."""
_OPERATING = frozenset(
    {
        "nodes",
        "datasets",
        "jobs",
        "pipelines",
        "results",
        "streams",
        "warmups",
        "profiles",
        "purge",
        "verifications",
        "problems",
    }
)
"""First segments of the addresses whose changes are daily operation."""
LISTING = TokenRole.OPERATOR
"""The role that may use an access key to list the store. A viewer reads what the gateway knows, such as names of cached objects,
and has no access key's rights."""


def role_needed(method: str, path: str) -> TokenRole:
    """The role that a request needs; ``path`` begins with ``PREFIX``."""
    below = path.removeprefix(PREFIX)
    if method in _SAFE or (method == "POST" and below in _ASKING):
        return TokenRole.VIEWER
    return TokenRole.OPERATOR if below.partition("/")[2].partition("/")[0] in _OPERATING else TokenRole.ADMIN
