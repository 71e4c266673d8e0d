"""Names and defaults in the documents match the sources."""

import ast
import importlib.util
import re
import subprocess
from types import ModuleType

import pytest

from gateway.api.ops import PATHS
from gateway.base import metrics
from gateway.base.config import Settings
from gateway.model.outcomes import Reason


@pytest.fixture(scope="module")
def generate_docs(root) -> ModuleType:
    """scripts/generate_docs.py as a module."""
    spec = importlib.util.spec_from_file_location("generate_docs", root / "scripts/generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def docs(root) -> dict[str, str]:
    """The text of every page of docs/, by file name."""
    return {path.name: path.read_text(encoding="utf-8") for path in (root / "docs").glob("*.md")}


def test_generated_pages_are_up_to_date(generate_docs):
    """`make docs` would change nothing: run it after a change of a setting, a metric or a reason."""
    stale = [path.name for path, text in generate_docs.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == []


def test_every_setting_is_documented(docs):
    """Each setting is in docs/configuration.md with its default and the description from its declaration."""
    page = docs["configuration.md"]
    missing = []
    for section, field in Settings.model_fields.items():
        inner = field.annotation if hasattr(field.annotation, "model_fields") else field.annotation.__args__[0]
        for name, setting in inner.model_fields.items():
            row = next((line for line in page.splitlines() if line.startswith(f"| `{section}.{name}` ")), "")
            if setting.description is None or setting.description.replace("|", "\\|") not in row:
                missing.append(f"{section}.{name}")
    assert missing == []


def test_every_metric_is_documented(docs):
    """Each metric is in docs/metrics.md with its labels; its meaning is the HELP text of ``/-/metrics``."""
    named = set(re.findall(r"`(larder_\w+(?:\{[\w,]+\})?)`", docs["metrics.md"]))
    names = {
        f"{metric._name}{'_total' if metric._type == 'counter' else ''}"
        f"{'{' + ','.join(metric._labelnames) + '}' if metric._labelnames else ''}"
        for metric in metrics.ALL
    }
    assert len(names) > 5
    assert names - named == set()
    assert [metric._name for metric in metrics.ALL if len(metric._documentation.split()) < 2] == []


def test_every_metric_moves(shipped):
    """A metric that nothing ever changes would be a promise in docs/metrics.md that the gateway does not keep."""
    names = {name for name, value in vars(metrics).items() if value in metrics.ALL}
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for path, tree in shipped.items()
        if path != "gateway/base/metrics.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }
    assert len(names) == len(metrics.ALL)
    assert names - used == set()


def test_every_reason_is_documented(docs):
    """Each reason in the cache-status header is in docs/s3-compatibility.md."""
    assert [reason for reason in Reason if f"`{reason}`" not in docs["s3-compatibility.md"]] == []


def test_every_own_endpoint_is_documented(docs):
    """Each address under /-/ is on a page of docs/."""
    addresses = {f"/-{path}" for path in PATHS}
    assert "/-/readyz" in addresses
    assert {address for address in addresses if f"`{address}`" not in "\n".join(docs.values())} == set()


def test_every_admin_endpoint_is_documented(docs, generate_docs):
    """Each address under /-/admin has a row in docs/admin-api.md with the purpose of each of its methods."""
    rows = [
        re.split(r" \| | \|$", line) for line in docs["admin-api.md"].splitlines() if line.startswith("| `/-/admin")
    ]
    purposes = {address: text for address, text, _ in rows}
    paths = generate_docs.admin_description()["paths"]
    operations = [(f"| `/-{path}`", f"{method.upper()}: ") for path, each in paths.items() for method in each]
    assert ("| `/-/admin/credentials`", "POST: ") in operations
    assert [each for each in operations if each[1] not in purposes.get(each[0], "")] == []


def test_every_make_target_that_is_named_exists(docs, root):
    """A command in README or docs/ can be typed as it stands."""
    prose = "\n".join([*docs.values(), *((root / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))])
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", prose)) | set(re.findall(r"^make ([a-z-]+)", prose, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named - targets == set()


def test_make_alone_lists_every_target(root):
    """`make` prints each public target with its purpose."""
    command = ["make", "--no-print-directory"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    targets = set(re.findall(r"^\.PHONY: ([a-z-]+)$", (root / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^  make ([a-z-]+) +\S", listed, re.MULTILINE)) == targets


def test_links_between_pages_lead_somewhere(root):
    """A relative link in a page names a file that exists."""
    broken = []
    for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "clients").rglob("*.md")]:
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        broken += [f"{page.relative_to(root)} -> {target}" for target in targets if not (page.parent / target).exists()]
    assert broken == []
