"""The image and the wheels, without a container engine: the Dockerfile's steps run in an empty folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from email import message_from_bytes
from email.message import Message
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.docs.blocks import ROOT

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
BOUND = 300
"""Seconds for building two wheels, with a slow package index."""


def steps(stage: str) -> list[tuple[str, str]]:
    """The instructions of a stage: word and rest, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text(encoding="utf-8"))
    body = text.partition(f" AS {stage}\n")[2].partition("\nFROM ")[0]
    lines = [line for line in body.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def tracked() -> list[str]:
    """The files of a clone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [name for name in listed.split("\0") if name]


def ignored(name: str) -> bool:
    """True if .dockerignore excludes a file."""
    parents = [name, *map(str, Path(name).parents)]
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    return any(fnmatch(each, pattern) for pattern in patterns for each in parents)


def copied(source: str) -> list[str]:
    """The files of a clone that a COPY of this source takes."""
    return [name for name in tracked() if (name == source or name.startswith(f"{source}/")) and not ignored(name)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, zipfile.ZipFile]:
    """The wheels, by name, that the Dockerfile's `pip wheel` builds from the copied files."""
    app, wheels = tmp_path_factory.mktemp("app"), tmp_path_factory.mktemp("wheels")
    take_files(app)
    [line] = [rest for word, rest in steps("wheels") if word == "RUN" and "pip wheel" in rest]
    variable, _, command = line.partition(" pip ")
    local = [each for each in shlex.split(command) if each.startswith(".")]
    name, _, value = variable.partition("=")
    return build(app, wheels, local, {name: value})


def take_files(app: Path) -> None:
    """Copy what the Dockerfile copies before it builds the wheels."""
    for word, rest in steps("wheels"):
        if word == "COPY":
            *sources, place = rest.split()
            for source in sources:
                files = copied(source)
                assert files, f"COPY {source}: there is no such file"
                for name in files:
                    target = app / place / (Path(name).relative_to(source) if name != source else Path(name).name)
                    if name == source and not place.endswith("/"):
                        target = app / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, target)


def build(app: Path, wheels: Path, local: list[str], environ: Mapping[str, str]) -> dict[str, zipfile.ZipFile]:
    """The wheels of these folders of ``app``, by name, without dependencies."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--disable-pip-version-check",
        "-w",
        str(wheels),
        *local,
    ]
    whole = {**os.environ, **environ}
    done = subprocess.run(command, cwd=app, env=whole, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name.partition("-")[0]: zipfile.ZipFile(path) for path in wheels.glob("*.whl")}


@pytest.mark.timeout(2 * BOUND)
def test_the_image_has_the_compiled_code(built: Mapping[str, zipfile.ZipFile]) -> None:
    """Rule: repeated hits are compiled in the image, by one library for every Python from 3.11 on this platform."""
    wheel = built["larder_gateway"]
    assert "gateway/api/s3/_repeated.abi3.so" in wheel.namelist()
    assert re.search(r"-cp311-abi3-linux_\w+[.]whl$", str(wheel.filename))


@pytest.mark.timeout(2 * BOUND)
def test_a_wheel_without_a_compiler(tmp_path: Path) -> None:
    """Rule: where nothing can be compiled, the wheel is one of pure Python, and complete but for the library."""
    take_files(tmp_path)
    wheel = build(tmp_path, tmp_path / "wheels", ["."], {"CC": "false"})["larder_gateway"]
    assert str(wheel.filename).endswith("-py3-none-any.whl")
    assert not [name for name in wheel.namelist() if name.endswith(".so")]
    assert "gateway/api/s3/compiled.py" in wheel.namelist()


def metadata(wheel: zipfile.ZipFile) -> Message:
    """The metadata of a wheel, as shown by a package index."""
    [name] = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


@pytest.mark.timeout(2 * BOUND)
def test_the_image_has_every_file_of_the_packages(built: Mapping[str, zipfile.ZipFile]) -> None:
    """Rule: the copied files suffice to build both packages, and all of them, pages and Redis scripts too, are inside."""
    assert built.keys() == {"larder_gateway", "larder"}
    assert set(copied("gateway")) <= set(built["larder_gateway"].namelist())
    client = {name.removeprefix("clients/python/src/") for name in copied("clients/python/src")}
    assert client <= set(built["larder"].namelist())


@pytest.mark.timeout(2 * BOUND)
def test_the_wheel_starts_with_the_configuration_of_the_image(
    built: Mapping[str, zipfile.ZipFile], tmp_path: Path
) -> None:
    """Rule: unpacked elsewhere, the gateway reads the configuration that Compose mounts, without the clone."""
    built["larder_gateway"].extractall(tmp_path / "installed")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); import gateway; print(gateway.__file__)"
    code += "; from gateway.cli import main; sys.exit(main())"
    command = [sys.executable, "-I", "-c", code, "check-config", str(ROOT / "deploy/docker/larder.toml")]
    secret = {"LARDER_CREDENTIALS__0__SECRET_ACCESS_KEY": "a long random string", "PATH": "/usr/bin:/bin"}
    secret["LARDER_ORIGINS__0__SECRET_ACCESS_KEY"] = "the store's"
    done = subprocess.run(command, cwd=tmp_path, env=secret, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "installed"))


@pytest.mark.timeout(2 * BOUND)
@pytest.mark.parametrize(("name", "folder"), [("larder_gateway", ""), ("larder", "clients/python")])
def test_a_package_index_can_show_a_wheel(built: Mapping[str, zipfile.ZipFile], name: str, folder: str) -> None:
    """Rule: licence and classifiers are in the wheel, and the links of its Markdown page are absolute."""
    shown = metadata(built[name])
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    assert shown["License-Expression"] == "Apache-2.0"
    assert shown.get_all("License-File") == ["LICENSE"]
    assert set(shown.get_all("Classifier", [])) == set(project["classifiers"])
    assert shown["Description-Content-Type"] == "text/markdown"
    page = shown.get_payload()
    assert isinstance(page, str)
    targets = re.findall(r"\]\(([^)\s]+)\)", page) + re.findall(r"(?:src|href)=\"([^\"]+)\"", page)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


class Answering(BaseHTTPRequestHandler):
    """Answers every GET with the status in ``server.status``."""

    def do_GET(self) -> None:
        """Answer."""
        assert self.path == "/-/readyz"
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def answering() -> Iterator[HTTPServer]:
    """A server on a free port."""
    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_image_is_healthy_when_it_is_ready(answering: HTTPServer, status: int, healthy: bool) -> None:
    """Rule: the command of HEALTHCHECK succeeds for a ready gateway and fails for one that starts or drains."""
    [rest] = [rest for word, rest in steps("gateway") if word == "HEALTHCHECK"]
    _, *command = json.loads(rest.partition("CMD ")[2])
    command = [each.replace("127.0.0.1:9000", f"127.0.0.1:{answering.server_port}") for each in command]
    answering.status = status  # type: ignore[attr-defined]
    done = subprocess.run([sys.executable, *command], capture_output=True, timeout=60, check=False)
    assert (done.returncode == 0) is healthy, done.stderr


def test_the_images_run_without_root() -> None:
    """Rule: both images run as a dedicated user, which owns the cache, under an init that forwards signals."""
    for stage in ("gateway", "store"):
        words = dict(steps(stage))
        assert words["USER"] == "larder"
        assert json.loads(words["ENTRYPOINT"])[:2] == ["tini", "--"]
    made = [rest for word, rest in steps("gateway") if word == "RUN"]
    assert "install -d -o larder -m 700 /var/cache/larder" in made[0]
