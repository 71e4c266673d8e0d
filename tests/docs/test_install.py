"""Installing as docs/quickstart.md says, into a new environment, with the oldest pip that Python 3.11 came with."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from rig.gateways import s3_client
from rig.origin import OriginThread
from rig.origin_auth import User
from rig.processes import spawn
from tests.cli.commands import environment
from tests.docs.blocks import ROOT, SHELL, blocks, pages

OLDEST = "22.3"
"""The pip version bundled with Python 3.11.0 (its Lib/ensurepip)."""
BOUND = 1500
"""Seconds. With quick downloads a minute suffices; a search for compatible versions takes far longer."""
SEARCHING = re.compile(r"looking at multiple versions|taking longer than usual|backtrack", re.IGNORECASE)
INSTALLS = (
    "README.md",
    "docs/quickstart.md",
    "docs/deploy.md",
    "deploy/larder-gateway.md",
    "deploy/docker/Dockerfile",
    "Makefile",
)


def typed(page: str) -> list[str]:
    """The lines of a page's blocks that install something."""
    lines = [line for block in blocks(ROOT / page) if block.language in SHELL for line in block.text.splitlines()]
    return [line for line in lines if line.startswith("pip install")]


@pytest.mark.timeout(2 * BOUND)
def test_the_line_of_the_quickstart_installs_with_the_oldest_pip(tmp_path: Path) -> None:
    """Rule: it ends without a search for versions, all fits together, the programs start, and wheels bring what they need."""
    installed = tmp_path / "venv"
    # The pip that installs the oldest one is ours: a second would be unpacked only to be replaced.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(installed)], check=True, timeout=BOUND)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables = {**kept, "PATH": f"{installed}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(installed)}
    # pip reads PIP_NO_COMPILE=1 as an order to compile.
    variables |= {"PIP_COMPILE": "0", "PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(command: str) -> str:
        ran = subprocess.run(
            ["bash", "-ec", command],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    run(f"{sys.executable} -m pip --python {installed} install pip=={OLDEST}")
    assert f"pip {OLDEST} " in run("pip --version")
    run("scripts/install-redis-binary python")
    [line] = typed("docs/quickstart.md")
    assert SEARCHING.search(run(line)) is None
    assert "No broken requirements" in run("pip check")
    run("larder-gateway --help && larder --help && python -c 'import boto3, aiobotocore'")
    run("moto_server --help && python -c 'import moto.server; moto.server.create_backend_app(\"s3\")'")
    run(f"make --directory={ROOT} wheels BIN={Path(sys.executable).parent}")
    # What the wheels say that they need is all that this one has.
    served = tmp_path / "served"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(served)], check=True, timeout=BOUND)
    run(f"scripts/install-packages {sys.executable} {served}/bin/python -c constraints.txt dist/larder*.whl")
    _serve_a_bucket(served / "bin", tmp_path)


def _serve_a_bucket(programs: Path, folder: Path) -> None:
    """Serve a bucket as the first screen of README.md says, and read and list it through that gateway, outside the clone."""
    screen = next(block.text for block in blocks(ROOT / "README.md") if block.language in SHELL)
    _, serve, copy = (shlex.split(line, comments=True) for line in screen.splitlines())
    with OriginThread([User("OK", "origin-secret")]) as origin:
        origin.put("datasets", "imagenet/0001.jpg", b"a photo")
        variables = environment(
            PATH=f"{programs}:/usr/bin:/bin", AWS_ACCESS_KEY_ID="OK", AWS_SECRET_ACCESS_KEY="origin-secret"
        )
        command = [str(programs / Path(serve[0]).name), *serve[1:-1], origin.endpoint, "--port", "0"]
        gateway = spawn(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
        exported: dict[str, str] = {}
        for line in gateway.stdout:
            exported.update(re.findall(r"^export (\w+)=(\S+)", line))
            if "LARDER_ADMIN_TOKEN" in line:
                break
        names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        with closing(s3_client(*(exported[name] for name in names))) as client:
            assert client.get_object(Bucket="datasets", Key="imagenet/0001.jpg")["Body"].read() == b"a photo"
        typed_there = {"cwd": folder, "env": variables | exported, "timeout": 60}
        subprocess.run([str(programs / Path(copy[0]).name), *copy[1:]], check=True, **typed_there)
        assert (folder / "0001.jpg").read_bytes() == b"a photo"
        asked = [str(programs / "larder"), "ls", "s3://datasets/imagenet/"]
        assert "0001.jpg" in subprocess.check_output(asked, text=True, **typed_there)
        gateway.send_signal(signal.SIGINT)
        assert gateway.wait(60) == 0


@pytest.mark.parametrize("page", INSTALLS)
def test_every_place_that_installs_the_gateway_is_constrained(page: str) -> None:
    """Rule: environments with the gateway, or with boto3's family, have the versions of constraints.txt."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.search(r"pip install (?!torch)|PIP_INSTALL :=", line)]
    gateway = [line for line in lines if not re.search(r"install '?\./clients/python", line)]
    assert gateway != []
    assert [line for line in gateway if "constraints.txt" not in line] == []


def test_pages_install_from_a_clone() -> None:
    """Rule: no index has these packages, so pages install the folders that they are in, which exist."""
    wanted = [
        (page, argument.partition("[")[0])
        for page in pages()
        for line in re.findall(r"pip install ([^`\n]+)", page.read_text(encoding="utf-8"))
        for argument in shlex.split(line, comments=True)
    ]
    folders = {argument for _, argument in wanted if argument.startswith(".")}
    assert folders == {".", "./clients/python"}
    assert all((ROOT / folder / "pyproject.toml").is_file() for folder in folders)
    assert [f"{page.relative_to(ROOT)}: {argument}" for page, argument in wanted if argument.startswith("larder")] == []


def test_the_constraints_are_what_is_required() -> None:
    """Rule: every dependency that is declared for Python 3.11 has a version there, or the file is to be refreshed."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned: dict[str, list[Version]] = {}
    for each in map(Requirement, lines):
        pinned.setdefault(_name(each), []).append(Version(next(iter(each.specifier)).version))
    missing = []
    for path in ("pyproject.toml", "clients/python/pyproject.toml"):
        project = tomllib.loads((ROOT / path).read_text())["project"]
        for required in map(Requirement, [*project["dependencies"], *_extras(project)]):
            if required.marker is not None and not required.marker.evaluate({"python_version": "3.11"}):
                continue
            versions = pinned.get(_name(required), [])
            if _name(required) not in ("larder", "larder-gateway", "torch") and not any(
                required.specifier.contains(version, prereleases=True) for version in versions
            ):
                missing.append(f"{path}: {required}")
    assert missing == []


@pytest.mark.parametrize("folder", ["", "clients/python"])
def test_a_distribution_has_its_licence_and_its_page(folder: str) -> None:
    """Rule: the package has the metadata that an index shows: licence, page, and classifiers that fit its Python versions."""
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    [licence] = project["license-files"]
    assert (ROOT / folder / licence).read_text() == (ROOT / "LICENSE").read_text()
    assert (ROOT / folder / project["readme"]).is_file()
    oldest = project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in project["classifiers"]
    assert not any(
        each.startswith("License ::") for each in project["classifiers"]
    )  # refused beside an SPDX licence (PEP 639)


@pytest.mark.parametrize(("folder", "package"), [("", "gateway"), ("clients/python", "larder")])
def test_a_wheel_brings_one_package(folder: str, package: str) -> None:
    """Rule: what only a clone uses, such as benchmarks and drills, takes no name in other people's environments."""
    build = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert [Path(each).name for each in build["targets"]["wheel"]["packages"]] == [package]


def _extras(project: dict[str, dict[str, list[str]]]) -> list[str]:
    return [each for extra in project["optional-dependencies"].values() for each in extra]


def _name(requirement: Requirement) -> str:
    return re.sub(r"[-_.]+", "-", requirement.name).lower()
