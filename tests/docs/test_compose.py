"""docker-compose.yml and its mounted files, checked without a container engine: nothing is built or started."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.base.config import load_settings
from rig.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
SECRETS = ROOT / "deploy/docker/secrets.example"
GATEWAYS = ("gateway-1", "gateway-2", "gateway-3")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file, with its anchors resolved."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    """A service's environment: its file of secrets, and docker-compose.yml."""
    given: dict[str, str] = {}
    if "env_file" in service:
        assert service["env_file"].startswith("${LARDER_SECRETS:-./deploy/docker/secrets.example}/")
        lines = (SECRETS / service["env_file"].rpartition("/")[2]).read_text().splitlines()
        given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return given | service.get("environment", {})


def installed() -> list[str]:
    """The command of Compose: Docker's plugin, or else the program that Debian has."""
    plugin = ["docker", "compose"]
    if (
        shutil.which("docker")
        and subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0
    ):
        return plugin
    return ["docker-compose"]


def test_compose_accepts_the_file():
    """Rule: ``docker compose config`` accepts docker-compose.yml of a clone without a warning."""
    done = subprocess.run([*installed(), "config", "-q"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


@pytest.mark.parametrize("name", GATEWAYS)
def test_every_gateway_accepts_its_configuration(compose, name):
    """Rule: file and environment of each gateway together are a configuration; no variable names a setting that is not there."""
    environment = environment_of(compose["services"][name])
    settings = load_settings(ROOT / "deploy/docker/larder.toml", environment)
    assert (settings.fleet.node, settings.fleet.advertise) == (name, f"http://{name}:{settings.server.port}")
    assert settings.redis.url != "embedded"
    assert settings.fleet.secret
    assert all(credential.secret_access_key for credential in settings.credentials)


def test_the_gateways_are_alike(compose):
    """Rule: nodes differ only in their name, address and cache."""
    services = [compose["services"][name] for name in GATEWAYS]
    rest = [{key: value for key, value in each.items() if key not in ("environment", "volumes")} for each in services]
    assert rest[0] == rest[1] == rest[2]
    assert len({volume for each in services for volume in each["volumes"][1:]}) == 2 * len(GATEWAYS)


def test_every_gateway_keeps_its_cache_in_its_volume(compose):
    """Rule: the cache directory of the configuration is where the volume is mounted, here and in the image."""
    directory = load_settings(
        ROOT / "deploy/docker/larder.toml", environment_of(compose["services"]["gateway-1"])
    ).cache.dir
    for name in GATEWAYS:
        volume, _, place = compose["services"][name]["volumes"][1].partition(":")
        assert volume in compose["volumes"]
        assert place == directory
    assert f"VOLUME {directory}\n" in (ROOT / "deploy/docker/Dockerfile").read_text()


def test_the_services_know_one_anothers_addresses(compose):
    """Rule: every address in a configuration names a service, with the port and the password that it has."""
    services = compose["services"]
    for name in GATEWAYS:
        environment = environment_of(services[name])
        settings = load_settings(ROOT / "deploy/docker/larder.toml", environment)
        redis = environment_of(services["redis"])
        assert settings.redis.url == f"redis://:{redis['REDIS_PASSWORD']}@redis:6379/0"
        assert redis["REDISCLI_AUTH"] == redis["REDIS_PASSWORD"]
        postgres = environment_of(services["postgres"])
        account = f"{postgres['POSTGRES_USER']}:{postgres['POSTGRES_PASSWORD']}"
        database = f"postgresql+asyncpg://{account}@postgres:5432/{postgres['POSTGRES_DB']}"
        assert settings.database.url == database
        assert settings.origins[0].endpoint == "http://store:5000"
        assert set(services[name]["depends_on"]) <= services.keys()


def test_what_is_mounted_exists(compose):
    """Rule: every file that a service is given is in the repository, and every volume is declared and used."""
    mounted = [volume for each in compose["services"].values() for volume in each.get("volumes", [])]
    mounted = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume) for volume in mounted]
    files = {source for source, *_ in (volume.split(":") for volume in mounted) if source.startswith(".")}
    assert [source for source in files if not (ROOT / source).is_file()] == []
    named = {source for source, *_ in (volume.split(":") for volume in mounted) if not source.startswith(".")}
    assert named == compose["volumes"].keys()


def test_only_this_machine_is_listened_on(compose):
    """Rule: the example's secrets are public, so all ports are published on 127.0.0.1."""
    ports = [port for each in compose["services"].values() for port in each.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_service_may_do_more_than_it_must(compose):
    """Rule: each has no capability, a read-only root file system, and limits; it writes to volumes or memory only."""
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert (service["cap_drop"], service.get("cap_add", [])) == (["ALL"], []), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["pids_limit"] > 0, name
        assert service["mem_limit"], name
        assert not service.get("privileged"), name
    for name in GATEWAYS:
        assert compose["services"][name]["volumes"][2].partition(":")[2] == "/tmp"
        assert compose["services"][name]["shm_size"]


def test_every_image_is_pinned(compose):
    """Rule: an image that is not built here, and the base of those that are, is named by a version and a digest."""
    named = {service["image"] for service in compose["services"].values() if "build" not in service}
    assert named
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    named |= set(re.findall(r"^ARG PYTHON=(.*)$", dockerfile, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${PYTHON}", "base"}
    assert [image for image in named if not re.fullmatch(r"[\w./-]+:v?\d+[\w.-]*@sha256:[0-9a-f]{64}", image)] == []
    assert any(image.startswith("python:") for image in named)


def test_every_service_comes_back_and_says_how_it_is(compose):
    """Rule: every service has a restart policy, and its own health check or its image's."""
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()
    for name, service in compose["services"].items():
        assert service["restart"] == "unless-stopped", name
        if "healthcheck" not in service:
            stage = dockerfile.split(f" AS {service['build']['target']}\n")[1].split("\nFROM ")[0]
            assert "HEALTHCHECK" in stage, name
    assert "/-/readyz" in dockerfile


def test_prometheus_and_nginx_know_every_gateway():
    """Rule: the gateways that are asked for metrics, and those that get requests, are those that exist."""
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    addresses = [f"{name}:9000" for name in GATEWAYS]
    assert job["metrics_path"] == "/-/metrics"
    assert job["static_configs"] == [{"targets": addresses}]
    servers = re.findall(r"^ *server (\S+:\d+) ", (ROOT / "deploy/nginx/gateways.conf").read_text(), re.MULTILINE)
    assert servers == addresses


def test_nginx_accepts_its_configuration(tmp_path):
    """Rule: ``nginx -t`` passes, once the names of the containers, which exist nowhere else, are addresses."""
    for file in (ROOT / "deploy/nginx").glob("*.conf"):
        text = re.sub(r"gateway-\d:9000", "127.0.0.1:9000", file.read_text())
        text = text.replace("listen 9000", f"listen 127.0.0.1:{free_port()}")
        (tmp_path / file.name).write_text(text)
    search = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin"
    command = [shutil.which("nginx", path=search) or "nginx", "-t", "-p", str(tmp_path), "-c", "nginx.conf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


def test_training_shares_the_socket_of_a_gateway():
    """Rule: deploy/docker/training.yml is accepted beside it; the socket's folder is the gateway user's, has one path in
    both containers, and training is neither root nor that user.
    """
    files = ["-f", "docker-compose.yml", "-f", "deploy/docker/training.yml"]
    done = subprocess.run([*installed(), *files, "config", "-q"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    more = yaml.safe_load((ROOT / "deploy/docker/training.yml").read_text())
    gateway, training = more["services"]["gateway-1"], more["services"]["training"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    environment = environment_of(compose["services"]["gateway-1"]) | gateway["environment"]
    folder = str(Path(load_settings(ROOT / "deploy/docker/larder.toml", environment).server.unix_socket).parent)
    assert gateway["volumes"] == [f"socket-1:{folder}"]
    assert training["volumes"] == [f"socket-1:{folder}:ro"]
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()
    assert f"install -d -o larder -m 755 {folder}\n" in dockerfile
    assert training["user"].partition(":")[0] not in ("0", re.findall(r"--uid (\d+)", dockerfile)[0])
