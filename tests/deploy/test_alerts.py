"""The alert rules: accepted by Prometheus, based on existing metrics, and fired under their conditions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.admin.pages import STATIC
from gateway.base import metrics
from gateway.policies.health.troubles import KINDS
from tests.deploy.promql import ROOT, promtool, series, spoken, unknown, values

RULES = ROOT / "deploy/prometheus/alerts.yml"
PLAYED = ROOT / "tests/deploy/alerts_played.yml"


@pytest.fixture(scope="module")
def alerts() -> list[dict[str, Any]]:
    """Every alert."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_prometheus_takes_rules_and_configuration(tmp_path: Path) -> None:
    """Rule: promtool accepts the rules, and the configuration that names them, with the token beside it."""
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(ROOT / "deploy/prometheus" / name, tmp_path)
    (tmp_path / "larder.token").write_text("a token\n")
    done = promtool("check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(_names())} rules found" in done.stdout


def test_alerts_fire_when_they_should_and_not_before() -> None:
    """Rule: played through with made-up series, each story of alerts_played.yml ends as it says."""
    done = promtool("test", "rules", PLAYED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stories_are_of_most_alerts() -> None:
    """Rule: more than half of the alerts are played through, with their texts."""
    stories = yaml.safe_load(PLAYED.read_text())["tests"]
    played = {each["alertname"] for story in stories for each in story["alert_rule_test"] if each["exp_alerts"]}
    assert played <= set(_names())
    assert 2 * len(played) > len(_names())


def test_every_alert_asks_for_what_the_gateway_has(alerts: list[dict[str, Any]]) -> None:
    """Rule: metrics, labels and the values that labels are compared with exist in the gateway."""
    words = spoken()
    wrong = {
        alert["alert"]: found
        for alert in alerts
        if (found := [*unknown(alert["expr"]), *(values(alert["expr"]) - words)])
    }
    assert wrong == {}


def test_every_alert_leads_to_its_entry_of_the_runbook(alerts: list[dict[str, Any]]) -> None:
    """Rule: each alert has a summary, a description, a severity and an entry in docs/runbook.md; no entry is left over."""
    runbook = (ROOT / "docs/runbook.md").read_text()
    entries = set(re.findall(r"^### (Larder\w+)$", runbook, re.MULTILINE))
    assert entries == {alert["alert"] for alert in alerts}
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["description"].endswith(".")


def test_every_problem_leads_to_an_entry_that_names_it() -> None:
    """Rule: the entry of docs/runbook.md that a problem's kind leads to says its name in its first line."""
    entries = re.findall(r"^### (.+)\n\n\*((?:.|\n)+?)\*", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    named = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"): first for title, first in entries}
    assert [name for name, kind in KINDS.items() if f"`{name}`" not in named.get(kind.runbook, "")] == []


def test_the_runbook_of_a_gateway_has_every_entry() -> None:
    """Rule: what a problem links to is on the page that every gateway serves."""
    served = (STATIC / "runbook/index.html").read_text(encoding="utf-8")
    wanted = {"problems", *(kind.runbook for kind in KINDS.values())}
    assert wanted - set(re.findall(r' id="([\w-]+)"', served)) == set()


def test_the_runbook_names_metrics_that_exist() -> None:
    """Rule: every metric named in docs/ exists."""
    wrong, known = {}, {*series(), *(metric._name for metric in metrics.ALL)}
    for page in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"`(larder_\w+)(?=[`{])", page.read_text()))
        if missing := sorted(named - known):
            wrong[page.name] = missing
    assert wrong == {}


def _names() -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)
