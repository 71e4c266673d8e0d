"""docs/quickstart.md, typed from its first block to its last: a store, a gateway, a key, a loader, a Redis, three gateways."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.terminal import Terminal, quiet_port, type_page

PORTS = ("5000", "6379", "9000", "9001", "9002", "9003")


@pytest.mark.timeout(400)
def test_the_quickstart_can_be_typed(tmp_path: Path) -> None:
    """Rule: every block works as described, in order, from an empty folder."""
    # On a machine that stalls, no node is to be given up for it.
    terminal = Terminal(tmp_path, {port: str(quiet_port()) for port in PORTS}, {"LARDER_FLEET__EXPIRE": "60s"})
    try:
        type_page(ROOT / "docs/quickstart.md", terminal)
    finally:
        terminal.close()
