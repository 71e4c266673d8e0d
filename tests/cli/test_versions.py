"""One version: of both programs, their distributions, and the chart."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import gateway
import larder
from gateway.cli import main
from larder.cli import main as users_main

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/larder/Chart.yaml"


@pytest.mark.parametrize(
    ("program", "module", "name"), [(main, gateway, "larder-gateway"), (users_main, larder, "larder")]
)
def test_a_program_says_the_version_of_its_wheel(program, module, name, capsys) -> None:
    """Rule: ``--version`` is the version that the wheel is built with."""
    with pytest.raises(SystemExit) as ended:
        program(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{name} {module.__version__}\n"
    assert version(name) == module.__version__


def test_gateway_client_and_chart_are_released_together() -> None:
    """Rule: they have the same version."""
    chart = yaml.safe_load(CHART.read_text())
    assert {gateway.__version__, larder.__version__} == {chart["version"], chart["appVersion"]}
