"""Readers of formats, as they are: each is a script of tests/s3compat/readers in an environment of its own.

A script names its packages, pinned, in the block of PEP 723, the client first; ``[tool.larder]`` names the programs of the system
that it starts (``programs``) and its name where the package has another one (``name``).
It runs once for each step, so nothing of an earlier step is left in the client.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.s3compat.road import Head
from tests.s3compat.world import Line, World

READERS = Path(__file__).parent / "readers"
ALWAYS = "checked"
"""The prefix whose objects the gateway checks at each read."""
RULES = ({"match": f"*/{ALWAYS}/**", "freshness": "always"},)
_BLOCK = re.compile(r"(?m)^# /// script\n((?:^#(?:| .*)\n)+?)^# ///$")
_WITHIN = 300
_ORIGIN = re.compile(r"^https?://[^/]+")  # of a target in absolute form
_LISTED = re.compile(r"^/[^/?]+/?(\?|$)")


@dataclass(frozen=True)
class Reader:
    """The script of one client."""

    script: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """The block of PEP 723."""
        block = _BLOCK.search(self.script.read_text(encoding="utf-8"))
        assert block is not None, f"{self.script.name} names no packages"
        return tomllib.loads("\n".join(line[2:] for line in block[1].splitlines()))

    @property
    def packages(self) -> list[str]:
        """What pip installs; the first is the client, unless ``tool.larder.name`` names it."""
        return list(self.about["dependencies"])

    @property
    def interpreter(self) -> str:
        """The Python of its environment: this one, or a newer one on PATH if it needs that; ``""`` if there is none."""
        oldest = re.search(r">=3\.(\d+)", self.about.get("requires-python", ""))
        needed = int(oldest[1]) if oldest else 0
        if sys.version_info.minor >= needed:
            return sys.executable
        newer = [f"python3.{minor}" for minor in range(needed, needed + 4)]
        return next(
            (
                name
                for name in newer
                if shutil.which(name) and subprocess.run([name, "-V"], capture_output=True).returncode == 0
            ),
            "",
        )

    @property
    def programs(self) -> list[str]:
        """Programs of the system that it starts."""
        return list(self._own.get("programs", ()))

    @property
    def name(self) -> str:
        """What the client is called in the table."""
        return str(self._own.get("name") or self.packages[0].partition("==")[0].partition("[")[0])

    @property
    def version(self) -> str:
        """The client's version: pinned, or what the program says."""
        if command := self._own.get("version"):
            said = subprocess.run(command, capture_output=True, text=True, check=True)
            match = re.search(r"\d+\.\d+[.\d]*", said.stdout + said.stderr)
            return match[0] if match else ""
        return self.packages[0].partition("==")[2]

    @property
    def _own(self) -> dict[str, Any]:
        return dict(self.about.get("tool", {}).get("larder", {}))


def readers() -> list[Reader]:
    """Every reader, by name."""
    scripts = [Reader(path) for path in READERS.glob("*.py") if _BLOCK.search(path.read_text(encoding="utf-8"))]
    return sorted(scripts, key=lambda reader: reader.name.lower())


def install(reader: Reader, home: Path) -> Path:
    """The Python of the reader's environment, which is made once for each set of packages."""
    python, stamp = home / "bin/python", home / "packages"
    wanted = "\n".join(reader.packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([reader.interpreter, "-m", "venv", str(home)], check=True)
        if reader.packages:
            pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            subprocess.run([*pip, *reader.packages], check=True)
        stamp.write_text(wanted)
    return python


@dataclass
class Asked:
    """What one read asked the store for."""

    listings: int = 0
    missing: int = 0
    writes: int = 0
    reads: int = 0
    listed: int = 0
    """The listings that the client asked the gateway for."""

    def __str__(self) -> str:
        kinds = (("listing", self.listings), ("missing", self.missing), ("write", self.writes), ("read", self.reads))
        counts = [f"{count} {kind}{'s' if count > 1 and kind != 'missing' else ''}" for kind, count in kinds if count]
        return ", ".join(counts) or "0"

    @property
    def kept(self) -> bool:
        """True if all that the cache may answer came from it."""
        return self.reads == 0 and self.listings <= self.listed


@dataclass
class Seen:
    """What became of each step of one reader: a result to print, by the step's name."""

    steps: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Try:
    """One reader before one gateway."""

    def __init__(self, reader: Reader, python: Path, world: World) -> None:
        self._reader = reader
        self._python = python
        self._world = world
        self._stem = uuid.uuid4().hex[:8]
        self.log: list[str] = []
        """The requests of the last read: what the client asked, and what reached the store."""

    def write(self, version: int, folder: str, *, past: bool) -> None:
        """Write a version, past the gateway or through it."""
        self._run("write", version, folder, self._world.origin.meta.endpoint_url if past else "")

    def read(self, folder: str) -> tuple[int, Asked]:
        """Read through the gateway: the version, and what the store was asked for."""
        mark = self._world.mark()
        self._world.road.heads.clear()
        version = re.search(r"^version (\d+)$", self._run("read", 0, folder, ""), re.MULTILINE)
        assert version is not None, "the reader names no version"
        lines, heads = self._world.since(mark), list(self._world.road.heads)
        self.log = [f"asked: {line.request} {line.status} {line.cache} {line.reason}" for line in lines]
        self.log += [f"at the store: {head.method} {head.target} {head.get('range')}" for head in heads]
        return int(version[1]), _count(lines, heads)

    def _run(self, step: str, version: int, folder: str, endpoint: str) -> str:
        with tempfile.TemporaryDirectory(prefix="reader-") as scratch:
            variables = {
                "PATH": os.environ["PATH"], "HOME": scratch, "TMPDIR": scratch,
                "PYTHONPATH": str(READERS), "PYTHONDONTWRITEBYTECODE": "1",
                "AWS_ENDPOINT_URL": endpoint or self._world.access.endpoint, "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": self._world.access.key, "AWS_SECRET_ACCESS_KEY": self._world.access.secret,
                "AWS_REGION": self._world.access.region, "AWS_DEFAULT_REGION": self._world.access.region,
                "AWS_EC2_METADATA_DISABLED": "true",
            }  # fmt: skip
            command = [
                self._python,
                self._reader.script,
                step,
                str(version),
                self._world.bucket,
                f"{folder}/{self._stem}",
            ]
            process = subprocess.Popen(
                command, env=variables, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
            try:
                out, error = process.communicate(timeout=_WITHIN)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise
            if process.returncode != 0:
                raise OSError(f"{step} {folder}: status {process.returncode}: {error[-3000:]}")
            return out


def _count(lines: list[Line], heads: list[Head]) -> Asked:
    targets = [(line.method, _ORIGIN.sub("", line.request.split(" ")[1]), line.status) for line in lines]
    missing = {target.partition("?")[0] for _, target, status in targets if status == 404}
    asked = Asked(listed=sum(_is_listing(method, target) for method, target, _ in targets))
    for head in heads:
        if _is_listing(head.method, head.target):
            asked.listings += 1
        elif head.method not in ("GET", "HEAD"):
            asked.writes += 1
        elif head.target.partition("?")[0] in missing:
            asked.missing += 1
        else:
            asked.reads += 1
    return asked


def _is_listing(method: str, target: str) -> bool:
    return method == "GET" and _LISTED.match(target) is not None


def course(attempt: Try, seen: Seen) -> None:
    """Every step, in its order: what it gave is in ``seen``, as soon as it is known."""
    attempt.write(1, "kept", past=True)
    _note(attempt, seen, "cold", "kept", {1})
    warm = _note(attempt, seen, "warm", "kept", {1})
    if not warm.kept:
        seen.faults += [f"warm: {line}" for line in attempt.log]
    attempt.write(2, "kept", past=False)
    _note(attempt, seen, "through", "kept", {2})
    attempt.write(3, "kept", past=True)
    _note(attempt, seen, "past", "kept", {2, 3})
    attempt.write(1, ALWAYS, past=True)
    _note(attempt, seen, "", ALWAYS, {1})
    attempt.write(2, ALWAYS, past=True)
    _note(attempt, seen, "checked", ALWAYS, {2})


def _note(attempt: Try, seen: Seen, step: str, folder: str, expected: set[int]) -> Asked:
    version, asked = attempt.read(folder)
    newest = max(expected)
    if version not in expected:
        seen.faults.append(f"{step}: version {version}, not {newest}")
    if step in ("cold", "warm"):
        seen.steps[step] = str(asked)
    elif step:
        seen.steps[step] = "new" if version == newest else "old"
    return asked
