"""Renders pages from recorded numbers.

A template's path names its page:

- ``benchmarks/NAME``: lab/benchmarks/results/NAME.md;
- ``evaluation/NAME``: docs/evaluation/NAME.md;
- ``evaluation/PAGE/NAME``: the section NAME of docs/evaluation/PAGE.md, which several programs share, between two comments;
- ``docs/NAME``: docs/NAME.md.

The numbers are in ``NAME.json`` beside the page, those of docs with the results of the benchmarks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lab.pages.ratio import Ratio

TEMPLATES = Path(__file__).parent
ROOT = TEMPLATES.parents[1]
RESULTS = ROOT / "lab" / "benchmarks" / "results"
EVALUATION = ROOT / "docs" / "evaluation"
_SUFFIX = ".md.jinja"


class Page(NamedTuple):
    """A page, or a section of one, and the numbers that it is rendered from."""

    template: str
    path: Path
    numbers: Path
    section: str = ""

    @property
    def name(self) -> str:
        """The program that measures."""
        return self.numbers.stem

    def render(self) -> str:
        """The text, from the recorded numbers."""
        return rendered(self.template, {**json.loads(self.numbers.read_text()), "name": self.name})

    def written(self) -> str:
        """The text that is in the page."""
        return self._split()[1].strip("\n") + "\n" if self.section else self.path.read_text()

    def write(self, text: str) -> None:
        """Write the text into the page."""
        if self.section:
            before, _, after = self._split()
            text = f"{before}\n{text}\n{after}"
        self.path.write_text(text)

    def _split(self) -> tuple[str, str, str]:
        """What is before the section, the section, and what is after it.

        Raises:
            ValueError: the page has no place for the section.
        """
        begin, end = f"<!-- begin {self.section} -->\n", f"<!-- end {self.section} -->\n"
        before, opened, rest = self.path.read_text().partition(begin)
        section, closed, after = rest.partition(end)
        if not opened or not closed:
            raise ValueError(f"{self.path} needs the lines {begin.strip()} and {end.strip()}")
        return before + begin, section, end + after


def page(template: str) -> Page:
    """The page of a template, ``evaluation/jobs/probing`` for example."""
    kind, *places, name = template.split("/")
    folder = {"benchmarks": RESULTS, "evaluation": EVALUATION, "docs": ROOT / "docs"}[kind]
    numbers = (EVALUATION if kind == "evaluation" else RESULTS) / f"{name}.json"
    return Page(template, folder / f"{places[0] if places else name}.md", numbers, name if places else "")


def pages() -> list[Page]:
    """All pages that have a template and recorded numbers."""
    names = (str(path.relative_to(TEMPLATES)).removesuffix(_SUFFIX) for path in TEMPLATES.rglob(f"[!_]*{_SUFFIX}"))
    return sorted(target for target in map(page, names) if target.numbers.exists())


def record(template: str, numbers: Mapping[str, Any]) -> None:
    """Record the numbers of a page, write it from them, and print it."""
    target = page(template)
    target.numbers.write_text(json.dumps(numbers, indent=1) + "\n")
    text = target.render()
    target.write(text)
    print(text, flush=True)


def rendered(template: str, numbers: Mapping[str, Any]) -> str:
    """The text that a template makes of numbers."""
    return _environment().get_template(template + _SUFFIX).render(numbers)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    made.filters |= {
        "fmt": format,
        "mean": mean,
        "median": median,
        "stdev": stdev,
        "furthest": partial(max, key=abs),
        "ratio": _ratio,
    }
    return made


def _ratio(figure: Mapping[str, Any]) -> str:
    """A figure as it was recorded, beside its budget."""
    return str(Ratio(**{key: value for key, value in figure.items() if key != "before"}))
