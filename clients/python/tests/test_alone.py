"""The client stands alone: these tests run in an environment that holds it and nothing of the gateway."""

import importlib.util
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

import larder

# What `import larder` may load beyond what Python has loaded at its start. Counting modules is what keeps the import
# fast on every machine: a new name here is a decision, not an accident.
BASELINE = "import http.client, urllib.parse, json, random, time, dataclasses, collections.abc"


def _modules(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(shown.stdout.split())


@pytest.mark.parametrize("package", ["gateway", "fastapi", "sqlalchemy", "redis", "aiobotocore", "torch"])
def test_nothing_of_the_gateway_comes_with_it(package):
    """Installing the client installs none of what the gateway is made of."""
    assert importlib.util.find_spec(package) is None


def test_it_requires_numpy_only():
    """The only requirement besides those of the extras is numpy, which every training environment has."""
    assert [line for line in requires("larder") or [] if "extra ==" not in line] == ["numpy>=1.26"]


def test_import_loads_few_modules():
    """`import larder` loads its own modules and the few of the standard library that it names."""
    extra = _modules("import larder") - _modules(BASELINE)
    assert extra == {"larder", "larder.client", "larder.errors", "larder.retry"}


def test_import_is_free_of_warnings():
    """Importing under ``-W error`` succeeds."""
    subprocess.run([sys.executable, "-I", "-W", "error", "-c", "import larder"], check=True)


def test_types_are_published():
    """The installed package says that it is typed."""
    assert (Path(larder.__file__).parent / "py.typed").is_file()
