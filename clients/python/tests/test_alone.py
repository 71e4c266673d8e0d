"""The client works alone: these tests run in an environment without the gateway."""

import importlib
import importlib.util
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

import larder

# Standard library modules that `import larder` needs. Counting modules is what keeps the import fast on every machine: a new
# name here is a decision, not an accident.
BASELINE = "import importlib"


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
    """Installing the client installs none of the gateway's dependencies."""
    assert importlib.util.find_spec(package) is None


def test_it_requires_numpy_only():
    """The only requirement besides those of the extras is numpy, which every training environment has."""
    always = [line for line in requires("larder") or [] if "extra ==" not in line and "python_version <" not in line]
    assert always == ["numpy>=1.26"]


def test_the_part_for_pytorch_says_what_it_needs():
    """Without PyTorch, `larder.torch` names the extra to install."""
    with pytest.raises(ModuleNotFoundError, match=r"larder\.torch needs PyTorch: pip install 'larder\[torch\]'"):
        importlib.import_module("larder.torch")


def test_import_loads_one_module():
    """`import larder` loads itself: neither numpy nor http, which come with the names that need them."""
    assert _modules("import larder") - _modules(BASELINE) == {"larder"}


def test_asking_a_gateway_loads_no_numpy():
    """A client that asks whether a gateway is ready, or registers a dataset, needs the standard library only."""
    loaded = _modules("import larder\nlarder.Client('http://127.0.0.1:9000')")
    assert "larder.http.connection" in loaded
    assert {name.partition(".")[0] for name in loaded} & {"numpy", "pyarrow", "torch", "botocore"} == set()


def test_reading_batches_loads_no_extras():
    """The transport gets by with numpy."""
    loaded = _modules("import larder\nlarder.BatchReader, larder.AsyncBatchReader, larder.S3")
    assert {name.partition(".")[0] for name in loaded} & {"numpy", "pyarrow", "torch", "botocore"} == {"numpy"}


def test_every_name_is_there():
    """Every name in ``__all__`` exists, and `dir` shows it."""
    assert set(larder.__all__) <= set(dir(larder))
    assert all(getattr(larder, name).__name__ == name for name in larder.__all__)


def test_a_name_that_is_not_there():
    """A misspelt name fails as it does in any module."""
    with pytest.raises(AttributeError, match="module 'larder' has no attribute 'Cleint'"):
        _ = larder.Cleint


def test_import_is_free_of_warnings():
    """Importing under ``-W error`` succeeds."""
    subprocess.run([sys.executable, "-I", "-W", "error", "-c", "import larder"], check=True)


def test_types_are_published():
    """The installed package is marked as typed."""
    assert (Path(larder.__file__).parent / "py.typed").is_file()
