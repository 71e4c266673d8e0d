"""The fenced blocks of the repository's pages, with the comments before them.

A block of commands or Python is run by a test, or says why it cannot be, in an HTML comment on the line before it. The comments:

- ``<!-- not run: WHY -->``: no test runs it;
- ``<!-- file: NAME -->``: the reader puts its text into that file;
- ``<!-- background: WHERE -->``: it runs in a separate terminal, and is up when WHERE, a URL or ``tcp:PORT``, answers;
- ``<!-- stopped: TEXT -->``: before it, the background command that contains TEXT was ended with Ctrl-C.

A page names the test that runs its blocks: ``<!-- tested: tests/docs/test_x.py -->``. The output of a block may follow it as a
block of the language ``output``, in which three dots match anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL = frozenset({"sh", "bash", "shell", "console"})
RUNNABLE = SHELL | {"python"}

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$(?:\n\n```output\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
_TESTED = re.compile(r"^<!-- tested: (\S+) -->$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: place, language, comment, text, and expected output."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    output: str | None

    @property
    def place(self) -> str:
        """For messages: page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def said(self, what: str) -> str | None:
        """The rest of a comment that begins with ``what``, such as ``file``; ``None`` without one."""
        return self.mark.removeprefix(f"{what}: ") if self.mark.startswith(f"{what}: ") else None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order; an output block is part of the block before it."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text[: match.start("text")].count("\n") + 1,
            match["language"],
            match["text"],
            match["mark"] or "",
            match["output"],
        )
        for match in _FENCE.finditer(text)
    ]


def pages() -> list[Path]:
    """Every page of the repository that people read."""
    found = [*ROOT.glob("*.md"), *(ROOT / "clients/python").glob("*.md")]
    found += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    return sorted(found)


def named_tests(page: Path) -> list[str]:
    """The test modules that a page names."""
    return _TESTED.findall(page.read_text(encoding="utf-8"))


def prints(wanted: str, came: str) -> bool:
    """True if the output matches the page's, where three dots match anything; trailing blanks are ignored."""
    pattern = ".*".join(re.escape(part) for part in _without_tails(wanted).split("..."))
    return re.fullmatch(pattern, _without_tails(came), re.DOTALL) is not None


def _without_tails(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
