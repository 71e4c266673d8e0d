"""Problems and members as reported by nodes that run as real processes."""

from __future__ import annotations

from rig.gateways import Running, members
from rig.processes import wait_until
from rig.v1 import ask

WITHIN = 60.0


def problems(node: Running) -> dict[str, str]:
    """The problems that a ready node reports."""
    answer = ask(node, "GET", "/readyz", key=None)
    assert answer.status == 200, answer.body
    found: dict[str, str] = answer.json["problems"]
    return found


def await_problems(node: Running, *parts: str) -> None:
    """Wait until a node reports exactly these impaired parts."""
    wait_until(lambda: sorted(problems(node)) == sorted(parts), WITHIN, f"problems with {parts}")


def sees(node: Running, wanted: dict[str, str]) -> None:
    """Wait until a node reports exactly these nodes."""
    wait_until(lambda: members(node) == wanted, WITHIN, f"a fleet of {wanted}")
