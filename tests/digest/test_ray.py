"""A build on a Ray cluster of one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.digest.conftest import CREDENTIALS, Store
from tests.ray_settings import ENVIRONMENT

# In a process of its own, which ends with everything that Ray started: Ray's own code warns, changes signal handlers and
# the environment, and none of that is for the other tests.
_SCRIPT = """
import json, sys
import ray
from larder import digest
from larder.digest import ray as on_ray

source, file, endpoint, directory = sys.argv[1:]
ray.init(
    num_cpus=1, include_dashboard=False, object_store_memory=100 * 1024**2, log_to_driver=False,
    _node_ip_address="127.0.0.1", _temp_dir=directory,
)
ray.data.DataContext.get_current().enable_progress_bars = False
try:
    for _ in sys.stdin:
        try:
            report = on_ray.build(source, file, endpoint=endpoint, jobs=4)
            told = {"unchanged": report.unchanged, "read": report.objects_read, "bytes": report.bytes_read}
        except digest.BuildIncomplete as error:
            told = {"failed": [failure.key for failure in error.failures]}
        print(json.dumps(told), flush=True)
finally:
    ray.shutdown()
"""


@contextmanager
def cluster(store: Store, log: Path) -> Iterator[Callable[[], dict[str, object]]]:
    """Ray with one CPU; yields a function that builds the objects below ``k/`` there and returns the outcome."""
    settings = {
        "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
    }
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, **ENVIRONMENT, **settings},
    }
    # Not below pytest's own directory: the paths of Ray's sockets would be too long for unix(7).
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory, log.open("w") as errors:
        words = [sys.executable, "-c", _SCRIPT, "s3://b/k/", str(store.file), store.s3.endpoint, directory]
        with subprocess.Popen(words, stderr=errors, **pipes) as process:

            def build() -> dict[str, object]:
                process.stdin.write("build\n")
                process.stdin.flush()
                while line := process.stdout.readline():
                    if line.startswith("{"):  # Ray greets on standard output
                        return json.loads(line)
                raise AssertionError(log.read_text())

            try:
                yield build
            finally:
                process.communicate(timeout=60)
        assert process.returncode == 0, log.read_text()
        assert processes_of(directory) == []


def processes_of(directory: str) -> list[str]:
    """The command lines of processes that name a directory."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return [line for line in lines if directory in line]


def test_a_cluster_gives_the_file_of_one_machine(store, tmp_path):
    """A build on Ray gives the bytes of a local one, names failures, reads no finished object again, and leaves no process."""
    for number in range(60):
        store.put(f"k/{number:02}", b"%d" % number * 1000)
    store.s3.deny(CREDENTIALS.access_key_id, "b/k/07")
    with cluster(store, tmp_path / "ray.log") as build:
        assert build() == {"failed": ["k/07"]}
        store.s3.allow_again()
        store.s3.seen.clear()
        assert build() == {"unchanged": 59, "read": 1, "bytes": 1000}
    assert store.reads() == {"k/07": 1}
    of_the_cluster = store.file.read_bytes()
    store.build("s3://b/k/", fresh=True)
    assert store.file.read_bytes() == of_the_cluster
