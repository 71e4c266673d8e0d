"""What the deployments give a gateway suffices for what its configuration lets it use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.base.config import Origin, Settings, load_settings
from gateway.base.config_server import ServerSettings
from gateway.store.datasets.folders import READERS
from tests.deploy.charts import ROOT, SECRETS, environment_of, render

WORKER = 256 * 1024**2
"""Resident bytes of a worker, twice those in docs/capacity.md."""
ENDING = 10
"""Seconds to end after the drain."""
LARGEST_PUT = 5 * 1024**3
"""Bytes of the largest object that S3 takes in one request."""
_UNITS = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_UNITS |= {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
_OF_COMPOSE = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


@dataclass(frozen=True)
class Deployed:
    """A gateway in one of the deployments: its settings, and what it is given; ``None`` for without a bound.

    ``stop`` is the seconds between SIGTERM and SIGKILL, ``files`` the descriptors of each process, the others are bytes.
    """

    settings: Settings
    stop: float
    temporary: int | None = None
    memory: int | None = None
    shared: int = 0
    disk: int | None = None
    files: int | None = None


def bytes_of(quantity: str) -> int:
    """Kubernetes' notation of an amount."""
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", quantity).groups()  # type: ignore[union-attr]
    return int(float(number) * _UNITS[unit])


def compose_bytes(quantity: str) -> int:
    """Compose's notation of an amount, with binary units."""
    number, unit = re.fullmatch(r"(\d+)([bkmg])b?", quantity).groups()  # type: ignore[union-attr]
    return int(number) * _OF_COMPOSE[unit]


def chart(tmp_path: Path) -> Deployed:
    """A pod of the Helm chart with its defaults."""
    rendered = render({"secrets": SECRETS})
    pod, container = rendered.pod["spec"], rendered.gateway
    file = tmp_path / "larder.toml"
    file.write_text(rendered.one("ConfigMap")["data"]["larder.toml"])
    given = environment_of(container, "larder-1") | SECRETS
    del given["POD_NAME"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    (claim,) = rendered.one("StatefulSet")["spec"]["volumeClaimTemplates"]
    return Deployed(
        load_settings(file, given),
        stop=pod["terminationGracePeriodSeconds"],
        temporary=bytes_of(volumes["tmp"]["emptyDir"]["sizeLimit"]),
        memory=bytes_of(container["resources"]["limits"]["memory"]),
        shared=bytes_of(volumes["shared-memory"]["emptyDir"]["sizeLimit"]),
        disk=bytes_of(claim["spec"]["resources"]["requests"]["storage"]),
    )


def compose(_: Path) -> Deployed:
    """A gateway of docker-compose.yml. Without a volume, /tmp is memory."""
    service: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["gateway-1"]
    lines = (ROOT / "deploy/docker/secrets.example/gateways.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line.startswith("LARDER_")) | service["environment"]
    on_disk = any(volume.endswith(":/tmp") for volume in service["volumes"])
    return Deployed(
        load_settings(ROOT / "deploy/docker/larder.toml", given),
        stop=float(service["stop_grace_period"].removesuffix("s")),
        temporary=None if on_disk else 0,
        memory=compose_bytes(service["mem_limit"]),
        shared=compose_bytes(service["shm_size"]),
    )


def unit(_: Path) -> Deployed:
    """The service of systemd, with the defaults of the configuration."""
    text = (ROOT / "deploy/systemd/larder-gateway.service").read_text()
    given = dict(re.findall(r"^(TimeoutStopSec|LimitNOFILE)=(\d+)$", text, re.MULTILINE))
    settings = Settings(origins=(Origin(endpoint="http://origin"),))
    return Deployed(settings, stop=float(given["TimeoutStopSec"]), files=int(given["LimitNOFILE"]))


@pytest.fixture(params=[chart, compose, unit])
def deployed(request: pytest.FixtureRequest, tmp_path: Path) -> Deployed:
    """A gateway of each deployment."""
    made: Deployed = request.param(tmp_path)
    return made


def test_nothing_is_killed_while_it_drains(deployed: Deployed) -> None:
    """Rule: SIGKILL comes later than ``server.drain_notice``, ``server.drain`` and the time to end."""
    server = deployed.settings.server
    assert deployed.stop >= server.drain_notice + server.drain + ENDING


def test_the_largest_upload_fits_into_tmp(deployed: Deployed) -> None:
    """Rule: an upload that is read whole has room in /tmp too, where it waits while the cache's disk fails."""
    assert deployed.temporary is None or deployed.temporary >= deployed.settings.server.max_spool


def test_reading_digest_files_does_not_end_a_gateway(deployed: Deployed) -> None:
    """Rule: the memory limit covers the workers, /dev/shm, and as many readers of digest files as run at once."""
    settings = deployed.settings
    used = settings.server.workers * WORKER + deployed.shared + READERS * settings.datasets.read_memory
    assert deployed.memory is None or deployed.memory >= used


def test_the_disk_has_room_beside_the_blobs(deployed: Deployed) -> None:
    """Rule: a volume has room for ``cache.capacity``, ``cache.reserve``, and an index of a hundredth."""
    cache = deployed.settings.cache
    assert deployed.disk is None or deployed.disk >= cache.capacity * 1.01 + cache.reserve


def test_there_are_enough_descriptors(deployed: Deployed) -> None:
    """Rule: a limit leaves ``cache.open_files`` in full, and two for each of ``server.max_in_flight``."""
    settings = deployed.settings
    wanted = max(4 * settings.cache.open_files, 2 * settings.server.max_in_flight + settings.cache.open_files)
    assert deployed.files is None or deployed.files >= wanted


def test_a_pod_is_known_before_the_next_one_goes() -> None:
    """Rule: an update waits longer than a node that has gone counts as there."""
    waits = render({"secrets": SECRETS}).one("StatefulSet")["spec"]["minReadySeconds"]
    assert waits > Settings(origins=(Origin(endpoint="http://origin"),)).fleet.expire


def test_nginx_allows_what_gateways_do() -> None:
    """Rule: nginx closes idle connections first, waits longer than a gateway for the origin, and takes S3's largest upload."""
    server, origin = ServerSettings(), Origin(endpoint="http://origin")
    gateways = (ROOT / "deploy/nginx/gateways.conf").read_text()
    proxy = (ROOT / "deploy/nginx/larder.conf").read_text()
    (idle,) = re.findall(r"keepalive_timeout (\d+)s;", gateways)
    assert int(idle) < server.keep_alive
    (silence,) = re.findall(r"proxy_read_timeout (\d+)s;", proxy)
    assert int(silence) > origin.connect_timeout + origin.read_timeout
    (largest,) = re.findall(r"client_max_body_size (\d+)g;", proxy)
    assert int(largest) * 1024**3 >= max(LARGEST_PUT, server.max_spool)


def test_containers_are_asked_where_they_listen() -> None:
    """Rule: the image's health check, its port and nginx use the default port."""
    port = ServerSettings().port
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text().partition("AS gateway\n")[2]
    assert f"EXPOSE {port}\n" in dockerfile
    assert f"http://127.0.0.1:{port}/-/readyz" in dockerfile
    assert set(re.findall(r"server gateway-\d:(\d+)", (ROOT / "deploy/nginx/gateways.conf").read_text())) == {str(port)}
