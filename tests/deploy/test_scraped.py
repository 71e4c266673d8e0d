"""A real Prometheus, configured as shipped, scrapes a real gateway: panels and alerts have what they ask for."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from gateway.base import metrics
from rig.gateways import Running, Settings, gateway
from rig.origin import OriginThread
from rig.processes import free_port, wait_until
from tests.deploy.promql import ROOT, names_of, without_variables

SECRETS = ROOT / "deploy/docker/secrets.example"
SHIPPED = ROOT / "deploy/prometheus/prometheus.yml"
SOON = 60.0


def mounted(place: str) -> Path:
    """The file of the example secrets that docker-compose.yml mounts at a place of Prometheus's container."""
    volumes = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    (source,) = (each.rsplit(":", 2)[0] for each in volumes if each.rsplit(":", 2)[1] == place)
    return SECRETS / source.rpartition("/")[2]


def environment(path: Path) -> dict[str, str]:
    """The variables of an env file."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


class Scraped:
    """A gateway, and the address of the Prometheus that scrapes it."""

    def __init__(self, running: Running, address: str, token: str) -> None:
        self.running = running
        self._address = address
        self._token = token

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of Prometheus."""
        with urllib.request.urlopen(f"{self._address}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def stored(self) -> set[str]:
        """The names of series in Prometheus."""
        return {name for name in self.ask("label/__name__/values") if name.startswith("larder_")}

    def exposed(self) -> set[str]:
        """The names of series that the gateway shows to an admin."""
        headers = {"Authorization": f"Bearer {self._token}"}
        asked = urllib.request.Request(f"{self.running.endpoint}/-/metrics", headers=headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {line.split("{")[0].split(" ")[0] for line in lines if line.startswith("larder_")}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A gateway with the tokens of docker-compose.yml that has answered reads, scraped twice since."""
    home = tmp_path_factory.mktemp("scraped")
    admin = environment(SECRETS / "gateways.env")
    token, reading = admin["LARDER_ADMIN__TOKEN"], admin["LARDER_ADMIN__READ_TOKEN"]
    extra = f'[admin]\ntoken = "{token}"\nread_token = "{reading}"\n'
    with OriginThread() as origin:
        origin.put("bucket", "key", b"bytes")
        with gateway(Settings(origin.endpoint, home / "cache", extra=extra), home) as running:
            for _ in range(2):
                running.client().get_object(Bucket="bucket", Key="key")["Body"].read()
            with prometheus(running, home / "prometheus") as address:
                found = Scraped(running, address, token)
                scrapes = "count_over_time(up[5m])"
                wait_until(lambda: value(found.ask("query", query=scrapes)) >= 2, SOON, "two scrapes")
                yield found


@contextmanager
def prometheus(running: Running, home: Path) -> Iterator[str]:
    """A Prometheus configured as shipped, but for the targets and the pace, until the block ends; its address."""
    home.mkdir()
    config = yaml.safe_load(SHIPPED.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{running.port}"]}]
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    (home / "alerts.yml").write_text((ROOT / "deploy/prometheus/alerts.yml").read_text())
    token = job.get("authorization", {}).get("credentials_file")
    if token is not None:
        (home / token).write_text(mounted(f"/etc/prometheus/{token}").read_text())
    listens = f"127.0.0.1:{free_port()}"
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={listens}"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *options], cwd=home, stdout=log, stderr=log)
    try:
        wait_until(lambda: ready(f"http://{listens}/-/ready"), SOON, "Prometheus")
        yield f"http://{listens}"
    finally:
        process.terminate()
        process.wait(SOON)


def ready(address: str) -> bool:
    """Whether a server answers 200."""
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def value(data: Any) -> float:
    """The number of the only series of an instant query, 0 for none."""
    return float(data["result"][0]["value"][1]) if data["result"] else 0.0


def panels(part: Any) -> Iterator[Any]:
    """All panels of a dashboard, those of collapsed rows too."""
    for panel in part.get("panels", ()):
        yield panel
        yield from panels(panel)


def queries() -> dict[str, list[str]]:
    """Every query of a dashboard or an alert in deploy/, by dashboard and panel, or by alert."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "deploy").rglob("dashboards/*.json")):
        for panel in panels(json.loads(path.read_text())):
            asked = [without_variables(target["expr"]) for target in panel.get("targets", ())]
            found.setdefault(f"{path.name}: {panel['title']}", []).extend(asked)
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]:
        found |= {rule["alert"]: [rule["expr"]] for rule in group["rules"]}
    return {title: asked for title, asked in found.items() if asked}


def test_prometheus_as_shipped_gets_all_that_panels_and_alerts_ask_for(scraped: Scraped) -> None:
    """Rule: what the gateway shows to an admin, Prometheus stores, if a panel or an alert asks for it."""
    known = {name for metric in metrics.ALL for name in names_of(metric)}
    shown, stored = scraped.exposed(), scraped.stored()
    asked = queries()
    assert len(asked) > 80
    missing = {
        title: lost
        for title, texts in asked.items()
        if (lost := {name for name in known if any(name in text for text in texts)} & shown - stored)
    }
    assert missing == {}


@pytest.mark.parametrize(
    "title",
    [
        "Bytes by tenant and bucket",
        "Requests by tenant and bucket",
        "How long until each origin answers",
        "Problems of the zone",
    ],
)
def test_panels_of_names_and_of_the_zone_have_data(scraped: Scraped, title: str) -> None:
    """Rule: after reads, the panels by tenant, bucket and origin show these reads; that of problems shows every kind."""
    (texts,) = (asked for name, asked in queries().items() if name.endswith(f": {title}"))

    def shown() -> bool:
        return all(scraped.ask("query", query=text)["result"] for text in texts)

    wait_until(shown, SOON, f"data in {title}")


def test_every_query_is_answered(scraped: Scraped) -> None:
    """Rule: Prometheus evaluates every query of the dashboards and alerts without an error."""
    for texts in queries().values():
        for text in texts:
            assert "result" in scraped.ask("query", query=text)
