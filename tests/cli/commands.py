"""Running ``larder-gateway`` and ``larder`` as a shell does."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from rig.processes import spawn

WITHIN = 60.0
OPERATOR = (sys.executable, "-m", "gateway")
USER = (sys.executable, "-m", "larder")
_ASK = """
eval "$2"
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete ${1%% *}
printf '%s\\n' "${COMPREPLY[@]}"
"""


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


def environment(**variables: str) -> dict[str, str]:
    """This process's variables without any that commands go by, proxies too, and with these."""
    ours = (
        "LARDER_",
        "AWS_",
        "SSL_",
        "NO_COLOR",
        "FORCE_COLOR",
        "COLUMNS",
        "LINES",
        "TERM",
        "TTY_",
        "PYTHONUNBUFFERED",
    )
    kept = (name for name in os.environ if not name.startswith(ours) and not name.lower().endswith("_proxy"))
    return {name: os.environ[name] for name in kept} | variables


def run(*words: str, program: tuple[str, ...] = OPERATOR, given: str = "", **variables: str) -> Ran:
    """Run a command to its end, without a terminal; its input is ``given``."""
    done = subprocess.run(
        [*program, *words],
        input=given,
        capture_output=True,
        text=True,
        env=environment(**variables),
        timeout=WITHIN,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def run_here(*words: str, **variables: str) -> Ran:
    """Run ``larder-gateway`` in this process, which saves a start, without a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(os, "environ", environment(**variables))
        patch.setattr(sys, "stdin", io.StringIO())
        try:
            status = main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err) if isinstance(stream.buffer, io.BytesIO)]
    return Ran(status, *texts)


def start(*words: str, program: tuple[str, ...] = OPERATOR, **variables: str) -> subprocess.Popen[str]:
    """Start a command."""
    return spawn(
        [*program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**variables)
    )


def at_terminal(*words: str, typed: str = "", variables: Mapping[str, str]) -> Ran:
    """Run a command on a terminal of 200 columns; ``typed`` is its input."""
    ours, theirs = pty.openpty()
    process = spawn(
        [*OPERATOR, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**{"TERM": "xterm-256color", "COLUMNS": "200", **variables}),
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
    except OSError:  # EIO: the last who had the terminal open has left
        pass
    finally:
        os.close(ours)
    return Ran(process.wait(WITHIN), seen.decode().replace("\r\n", "\n"), "")


def propose(line: str, **variables: str) -> list[str]:
    """What bash proposes at the end of a line; nothing else may be printed."""
    said = _bash("-c", _ASK, "bash", line, _script(line.partition(" ")[0]), **variables)
    return [word.strip() for word in said.splitlines() if word.strip()]


@cache
def _script(program: str) -> str:
    """What a program prints for ``eval`` in bash, which is the same for every line."""
    return _bash("-c", f"{program} completion bash")


def _bash(*words: str, **variables: str) -> str:
    """The output of bash, which knows both programs; nothing else may be printed."""
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    ran = subprocess.run(
        ["bash", *words],
        capture_output=True,
        text=True,
        env=environment(**variables) | {"PATH": programs},
        timeout=WITHIN,
        check=True,
    )
    assert ran.stderr == ""
    return ran.stdout
