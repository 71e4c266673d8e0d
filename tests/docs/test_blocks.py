"""Checks of all pages: runnable blocks are run, files are parsed, and links resolve."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from gateway.base import metrics
from gateway.base.config import Settings, load_settings
from tests.docs.blocks import ROOT, RUNNABLE, Block, blocks, named_tests, pages

EVERY = [(page, block) for page in pages() for block in blocks(page)]
SHORTEST_REASON = 12
ORIGIN = '\n[[origins]]\nendpoint = "http://127.0.0.1:5000"\n'


def of(*languages: str) -> list[Block]:
    """All blocks of these languages, with or without a comment."""
    return [block for _, block in EVERY if block.language in languages]


def test_every_block_says_of_what_it_is():
    """Rule: a fence names its language, or ``text``, so that the other tests see every block."""
    assert len(EVERY) > 50
    assert [block.place for _, block in EVERY if not block.language] == []


def test_every_block_that_can_be_run_is_run_or_says_why_not():
    """Rule: a block of commands or Python has ``<!-- not run: WHY -->`` before it, or its page names the test that runs it."""
    silent = []
    for page, block in EVERY:
        reason = block.said("not run")
        if block.language in RUNNABLE and not named_tests(page) and (reason is None or len(reason) < SHORTEST_REASON):
            silent.append(block.place)
    assert silent == []


def test_every_test_that_a_page_names_is_about_it():
    """Rule: a module named as the test of a page exists and names the page; so does the module of a reason."""
    wrong = []
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        for module in named_tests(page):
            path = ROOT / module
            if not path.is_file() or name not in path.read_text(encoding="utf-8"):
                wrong.append(f"{name}: {module}")
    for _, block in EVERY:
        named = re.findall(r"\btests/[\w/]+\.py", block.said("not run") or "")
        wrong += [f"{block.place}: {module}" for module in named if not (ROOT / module).is_file()]
    assert wrong == []


def test_every_configuration_on_a_page_is_accepted(tmp_path: Path):
    """Rule: a block of TOML is a configuration, or a part of one that is complete with an origin; scenarios are files."""
    refused = []
    for block in of("toml"):
        if block.said("file") is not None:
            continue
        path = tmp_path / "larder.toml"
        path.write_text(block.text + ("" if "[[origins]]" in block.text else ORIGIN), encoding="utf-8")
        try:
            load_settings(path)
        except Exception as error:
            refused.append(f"{block.place}: {error}")
    assert refused == []


def test_every_document_on_a_page_can_be_read():
    """Rule: blocks of JSON, YAML and TOML are that."""
    wrong = []
    readers = {"json": json.loads, "yaml": lambda text: list(yaml.safe_load_all(text)), "toml": tomllib.loads}
    for language, read in readers.items():
        for block in of(language):
            try:
                read(block.text)
            except (ValueError, yaml.YAMLError) as error:
                wrong.append(f"{block.place}: {error}")
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings, as GitHub spells them, and elements with an id or name."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def test_links_lead_to_a_heading():
    """Rule: the anchor of a link between pages, or within one, exists."""
    broken = []
    for page in pages():
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            other = (page.parent / target) if target else page
            if other.suffix == ".md" and (not other.exists() or anchor not in anchors(other)):
                broken.append(f"{page.relative_to(ROOT)} -> {target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("index", ["docs/README.md"])
def test_every_page_is_in_the_index(index: str):
    """Rule: each page of docs/ can be found from its index."""
    text = (ROOT / index).read_text(encoding="utf-8")
    linked = {((ROOT / index).parent / target).resolve() for target in re.findall(r"\]\(([^)#:\s]+)", text)}
    wanted = {page for page in (ROOT / "docs").glob("*.md") if page != ROOT / index}
    assert sorted(page.name for page in wanted - linked) == []


def test_every_picture_has_a_description():
    """Rule: every picture has an alternative text, and its file exists."""
    pictures = re.compile(r'!\[([^\]]*)\]\(([^)]+)\)|<img alt="([^"]*)" src="([^"]+)">|srcset="([^"]+)"')
    without = []
    for page in pages():
        for alt, path, text, source, dark in pictures.findall(page.read_text(encoding="utf-8")):
            named = dark or len(alt or text) > 2
            if not named or not (page.parent / (path or source or dark)).is_file():
                without.append(f"{page.relative_to(ROOT)}: {path or source or dark}")
    assert without == []


def test_every_metric_that_a_page_names_exists():
    """Rule: metric names on the pages are the names in Prometheus."""
    known = set()
    for metric in metrics.ALL:
        name = f"{metric._name}_total" if metric._type == "counter" else metric._name
        known |= {name} | (
            {f"{name}_{part}" for part in ("bucket", "count", "sum")} if metric._type == "histogram" else set()
        )
    wrong = []
    for page in pages():
        named = set(re.findall(r"\blarder_[a-z0-9_]+\b(?!\.py)", page.read_text(encoding="utf-8")))
        wrong += [f"{page.relative_to(ROOT)}: {name}" for name in sorted(named - known)]
    assert wrong == []


def test_every_setting_that_a_page_names_exists():
    """Rule: ``section.name`` of a section of the configuration is a setting."""
    known = set()
    for section, field in Settings.model_fields.items():
        inner = field.annotation if hasattr(field.annotation, "model_fields") else field.annotation.__args__[0]
        known |= {f"{section}.{name}" for name in inner.model_fields}
    sections = "|".join(Settings.model_fields)
    wrong = []
    for page in pages():
        named = set(re.findall(rf"`((?:{sections})\.(?!toml`)[a-z0-9_]+)`", page.read_text(encoding="utf-8")))
        wrong += [f"{page.relative_to(ROOT)}: {name}" for name in sorted(named - known)]
    assert wrong == []


def test_every_command_that_a_page_names_exists():
    """Rule: the first word after ``larder-gateway`` on a page is a command of docs/cli.md."""
    listed = set(re.findall(r"larder-gateway ([a-z][a-z-]+)", (ROOT / "docs/cli.md").read_text(encoding="utf-8")))
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in pages()
        for name in re.findall(
            r"(?:`|^|[;(] ?)larder-gateway ([a-z][a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert {one for one in named if one[1] not in listed} == set()


def test_a_command_has_one_name_on_all_pages():
    """Rule: ``larder dataset`` is an accepted alias; pages say ``larder datasets``, as docs/cli.md does."""
    now = [page for page in pages() if page.name != "CHANGELOG.md"]
    wrong = [page.relative_to(ROOT).as_posix() for page in now if "larder dataset " in page.read_text(encoding="utf-8")]
    assert wrong == []


def test_figures_of_the_readme_stand_in_their_sources():
    """Rule: each number of a table's row is on the page that the row links to, perhaps with more digits; both change together."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "](" in line]
    assert len(rows) > 10
    wrong = []
    for row in rows:
        (source,) = re.findall(r"\]\(([^)]+)\)", row)
        page = numbers((ROOT / source).read_text(encoding="utf-8"))
        said = numbers(re.sub(r"\]\([^)]+\)", "", "|".join(row.split("|")[2:])))
        wrong += [f"{number}: not in {source}" for number in said if not any(rounds_to(each, number) for each in page)]
    assert wrong == []


def numbers(text: str) -> set[str]:
    """The numbers in a text, without commas between thousands."""
    return set(re.findall(r"(?<![\d.])\d+(?:\.\d+)?(?!\d)", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)))


def rounds_to(exact: str, number: str) -> bool:
    """True if a number is another one, or that with fewer decimals."""
    decimals = len(number.partition(".")[2])
    return exact == number or ("." in exact and f"{float(exact):.{decimals}f}" == number)


def test_docs_are_no_longer_than_a_reader_bears():
    """Rule: docs/ and README.md together have at most 76,000 words; what a command prints is not among them."""
    texts = [path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]]
    assert sum(len(text.split()) for text in texts) <= 76_000
