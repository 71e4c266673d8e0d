"""An eviction order is added as docs/adding-a-policy.md says: its file, the registry, its test, and no other place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks

PAGE = ROOT / "docs/adding-a-policy.md"
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin")
"""The plugins that these tests need; importing all installed ones takes longer than the tests."""
COPIED = ("tests/conftest.py", "tests/policies/test_eviction_orders.py", "tests/store")


@pytest.mark.timeout(400)
def test_an_order_is_added_in_three_places(tmp_path: Path) -> None:
    """Rule: with the page's three blocks in a copy of the gateway, the new order passes its test and the contract."""
    file, registry, test = [block.text for block in blocks(PAGE) if "test_new_order.py" in block.mark]
    shutil.copytree(ROOT / "gateway", tmp_path / "gateway")  # with what is compiled, which stays valid
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)

    (tmp_path / "gateway/policies/eviction/mru.py").write_text(file)
    pools, name = tmp_path / "gateway/policies/pools.py", registry.split()[-1]
    before = pools.read_text()
    assert f"`{name}(),`" in PAGE.read_text()
    after = before.replace("        LeastRecentlyUsed(),\n", f"        LeastRecentlyUsed(),\n        {name}(),\n")
    pools.write_text(
        after.replace("\nfrom gateway.policies.eviction.order", f"\n{registry}from gateway.policies.eviction.order")
    )
    with (tmp_path / "tests/policies/test_eviction_orders.py").open("a") as tests:
        tests.write(f"\n\n{test}")

    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *PLUGINS,
            "-k",
            "mru",
            "tests/policies",
            "tests/store/test_pools.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^9 passed", ran.stdout, re.MULTILINE), ran.stdout
