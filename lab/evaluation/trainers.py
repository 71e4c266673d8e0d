"""Training processes: each is asked by a line of JSON on standard input, and answers by lines on standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Message = dict[str, Any]
"""A question or an answer."""


class TrainingProcess:
    """A module of ``lab.evaluation`` that runs as a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, question: Message) -> None:
        """Send a question, without waiting for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Message:
        """Wait for the next answer.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a training process ended; what it said is above")
        answer: Message = json.loads(line)
        return answer


@contextmanager
def training_process(module: str) -> Iterator[TrainingProcess]:
    """A running process; each of its libraries computes in one thread."""
    command = [sys.executable, "-m", f"lab.evaluation.{module}"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings)
    try:
        yield TrainingProcess(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def questions() -> Iterator[Message]:
    """In a training process: the questions, until there are no more."""
    while line := sys.stdin.readline():
        yield json.loads(line)


def reply(answer: Message) -> None:
    """In a training process: answer."""
    print(json.dumps(answer), flush=True)
