"""Every configuration that the repository ships, shows on a page or writes: checked, and put into an archive for support."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gateway.local.quick_start import prepare
from tests.cli.commands import run_here
from tests.docs.blocks import ROOT, blocks, pages

STORE = "http://127.0.0.1:9"
SECRET = STORE
"""What is filled in, for an address as well as for a secret."""
ASKED = re.compile(r"here or as (LARDER_\w+)")
NAMES = (None, "larder.toml", "fleet.toml")
"""Files on pages that are configurations, or parts of one; other TOML is scenarios of the simulator."""


def shown() -> dict[str, str]:
    """The configurations of pages by place, those in the repository, and those in values of the chart."""
    every = [block for page in pages() for block in blocks(page)]
    texts = {block.place: block.text for block in every if block.language == "toml" and block.said("file") in NAMES}
    texts["deploy/docker/larder.toml"] = (ROOT / "deploy/docker/larder.toml").read_text()
    values = {block.place: block.text for block in every if block.said("file") == "my-values.yaml"}
    values["deploy/helm/larder/values.yaml"] = (ROOT / "deploy/helm/larder/values.yaml").read_text()
    return texts | {place: yaml.safe_load(text)["config"] for place, text in values.items()}


def of_a_first_start(file: Path) -> None:
    """What ``serve`` without a configuration writes."""
    started = prepare(STORE, {"LARDER_CACHE__DIR": str(file.parent)}, {})
    started.keep({"LARDER_CACHE__DIR": str(file.parent)})
    assert started.file == file


def of_init(file: Path) -> None:
    """What ``init`` writes."""
    assert run_here("init", str(file), "--origin", STORE).status == 0


WRITTEN: dict[str, Callable[[Path], None]] = {"a first start": of_a_first_start, "init": of_init}
SHOWN = shown()


def placed(name: str, folder: Path) -> Path:
    """The configuration as a file of its own folder."""
    file = folder / "larder.toml"
    if name in WRITTEN:
        WRITTEN[name](file)
    else:
        file.write_text(SHOWN[name], encoding="utf-8")
    return file


def filled_in(file: Path) -> dict[str, str]:
    """The variables that ``check-config`` asks for, one after the other, until it accepts the file."""
    variables: dict[str, str] = {}
    while (ran := run_here("check-config", str(file), **variables)).status != 0:
        asked = set(ASKED.findall(ran.err))
        assert asked - variables.keys(), ran.err
        variables |= dict.fromkeys(asked, SECRET)
    return variables


def test_some_are_found() -> None:
    """Rule: pages, the images' configuration and the chart's are among them."""
    assert len(SHOWN) > 10
    assert {"docs/quickstart.md", "docs/deploy.md"} <= {place.partition(":")[0] for place in SHOWN}


@pytest.mark.parametrize("name", [*WRITTEN, *SHOWN])
def test_it_passes_or_says_what_to_fill_in(name: str, tmp_path: Path) -> None:
    """Rule: what ``serve`` and ``init`` write passes as it is, and so does a whole file of a page; of others, the error names the
    variables with which it passes."""
    file = placed(name, tmp_path)
    variables = filled_in(file)
    whole = name in WRITTEN or ("[[origins]]" in file.read_text() and name.startswith("docs/quickstart.md"))
    assert not (whole and variables)


@pytest.mark.parametrize("name", [*WRITTEN, *SHOWN])
def test_an_archive_for_support_has_it(name: str, admin, operator, tmp_path: Path) -> None:
    """Rule: with the gateway's variables, the configuration is in the archive, without its secrets; a part of a configuration has
    the origin of the gateway that is asked."""
    admin.answers["GET origins/default"] = {"name": "default", "endpoint": "http://127.0.0.1:8", "region": "eu-west-1"}
    file, archive = placed(name, tmp_path), tmp_path / "support.tar.gz"
    variables = filled_in(file)
    asks = variables.pop("LARDER_ORIGINS__0__ENDPOINT", None)
    written = operator("support", "--config", str(file), "--out", str(archive), "--json", **variables).json
    assert "configuration.json" not in written["missing"]
    with tarfile.open(archive) as files:
        text = files.extractfile("larder-support/configuration.json").read().decode()  # type: ignore[union-attr]
    configuration = json.loads(text)
    assert (configuration["origins"][0]["endpoint"] == "http://127.0.0.1:8") == (asks is not None)
    assert [
        key["secret_access_key"] for key in configuration["credentials"] if key["secret_access_key"] != "(hidden)"
    ] == []


def test_an_archive_without_the_gateways_variables_says_which(operator, tmp_path: Path) -> None:
    """Rule: the archive names the variable of a secret that the environment lacks."""
    file, archive = ROOT / "deploy/docker/larder.toml", tmp_path / "support.tar.gz"
    written = operator("support", "--config", str(file), "--out", str(archive), "--json").json
    assert "LARDER_CREDENTIALS__0__SECRET_ACCESS_KEY" in written["missing"]["configuration.json"]
