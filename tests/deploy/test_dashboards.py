"""The Grafana dashboard, checked without Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.base import metrics
from tests.deploy.promql import ROOT, names_of, promtool, rules_of, spoken, unknown, values, without_variables

DASHBOARD = ROOT / "deploy/grafana/dashboards/larder.json"


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    """The dashboard."""
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def expressions(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every expression, with the title of its panel."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def test_prometheus_can_parse_every_expression(board: dict[str, Any], tmp_path: Path) -> None:
    """Rule: promtool accepts every expression of every panel."""
    texts = [without_variables(text) for _, text in expressions(board)]
    assert len(texts) > 60
    (tmp_path / "rules.yml").write_text(rules_of(texts))
    done = promtool("check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_shows_what_the_gateway_has(board: dict[str, Any]) -> None:
    """Rule: metrics, labels and the values that labels are compared with exist in the gateway."""
    words = spoken()
    wrong = {title: found for title, text in expressions(board) if (found := [*unknown(text), *(values(text) - words)])}
    assert wrong == {}


def test_every_metric_is_on_the_dashboard(board: dict[str, Any]) -> None:
    """Rule: every metric of the gateway is in a panel."""
    shown = " ".join(text for _, text in expressions(board))
    hidden = [
        metric._name for metric in metrics.ALL if not any(re.search(rf"\b{name}\b", shown) for name in names_of(metric))
    ]
    assert hidden == []


def test_it_imports_without_edits(board: dict[str, Any]) -> None:
    """Rule: no data source is named but by the variable; each panel and variable has it; the file has no id of some Grafana."""
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert board["id"] is None
    asked = [panel for panel in board["panels"] if panel["type"] != "row"]
    asked += [target for panel in asked for target in panel["targets"]]
    asked += [variable for variable in variables.values() if variable["type"] == "query"]
    assert {part["datasource"]["uid"] for part in asked} == {"${datasource}"}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(board)))
    assert used == variables.keys()


def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    """Rule: every panel has a distinct id and place, within Grafana's 24 columns."""
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_panel_says_what_it_shows(board: dict[str, Any]) -> None:
    """Rule: each panel has a title, a unit and a description, so that readers need no PromQL."""
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"].endswith(".")
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_grafana_is_provisioned_with_what_is_mounted() -> None:
    """Rule: of docker-compose.yml Grafana gets its data source, by the name of the service, and the dashboards where it looks."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    provisioning = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/larder.yml").read_text())["providers"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in services["grafana"]["volumes"]}
    assert mounted[f"{provider['options']['path']}/larder.json"] == "./deploy/grafana/dashboards/larder.json"
    assert {place for place in mounted if place.startswith("/etc/grafana/provisioning/")} == {
        "/etc/grafana/provisioning/datasources/prometheus.yml",
        "/etc/grafana/provisioning/dashboards/larder.yml",
    }
