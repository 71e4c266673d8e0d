"""Try every client against running gateways and write the table of docs/s3-compatibility.md (`make clients`).

For each client: twelve operations, each on a miss, on a hit, and with the origin stopped, over https before moto and over http
before radosgw (``--place`` chooses other pairs). A relay before the gateway notes what clients send, and it is printed. The
programs are those on PATH (s3cmd, rclone, curl, node; ``scripts/install-system-packages clients`` installs them) and those that
this script installs into build/clients (AWS CLI, minio-py, the JavaScript SDK), because they pin libraries of their own.
"""

# ruff: noqa: S603, S607, T201 - it starts the programs named here, and says how far it is

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rig.moto import moto_server
from rig.radosgw import Radosgw, shared_radosgw, stop_radosgw
from tests.s3compat import trials
from tests.s3compat.certificates import Certificates, make_certificates
from tests.s3compat.clients.base import Client
from tests.s3compat.clients.botocore_based import Aiobotocore, Boto3, Boto3Crt, S3fs
from tests.s3compat.clients.commands import AwsCli, Curl, Rclone, S3cmd
from tests.s3compat.clients.driven import DRIVERS, JavaScript, Minio
from tests.s3compat.clients.native import Obstore, Pyarrow
from tests.s3compat.operations import OPERATIONS
from tests.s3compat.payload_forms import forms_of
from tests.s3compat.road import Head, Road
from tests.s3compat.world import World, world

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/s3-compatibility.md"
TOOLS = ROOT / "build/clients"
PYTHON_TOOLS = ("awscli", "minio")
NODE_TOOLS = ("@aws-sdk/client-s3", "@aws-sdk/lib-storage", "@aws-sdk/s3-request-presigner")
CLIENTS: tuple[type[Client], ...] = (
    Boto3, Boto3Crt, Aiobotocore, S3fs, AwsCli, Obstore, Pyarrow, JavaScript, Minio, Rclone, S3cmd, Curl,
)  # fmt: skip
PLACES = ("https-moto", "http-radosgw", "http-moto", "https-radosgw")
USUAL_PLACES = PLACES[:2]


@dataclass
class Tried:
    """Results of one client: its version, the failures by (place, state, operation), and the headers it sent."""

    version: str = ""
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)
    passed: set[tuple[str, str, str]] = field(default_factory=set)
    forms: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def main() -> int:
    """Run the clients that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--client", action="append", default=[], help="only this one (by name); the page stays as it is"
    )
    parser.add_argument("--place", action="append", default=[], choices=PLACES, help="only there")
    chosen = parser.parse_args()
    install_tools()
    kinds = [kind for kind in CLIENTS if not chosen.client or kind.name in chosen.client]
    tried = {kind.name: Tried() for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="clients-") as home, origins(Path(home)) as endpoints:
        certificates = make_certificates(Path(home))
        for place in chosen.place or USUAL_PLACES:
            try_place(place, endpoints, Path(home), certificates, {kind: tried[kind.name] for kind in kinds})
    print(*forms_sent(tried), sep="\n")
    if not chosen.client and not chosen.place:
        write_page(tried)
    return 0


def install_tools() -> None:
    """Install the client programs that are not on PATH, each once."""
    python = TOOLS / "venv/bin/python"
    if not (TOOLS / "venv/bin/aws").exists():
        subprocess.run([sys.executable, "-m", "venv", str(TOOLS / "venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PYTHON_TOOLS], check=True)
    modules = TOOLS / "node"
    if not (modules / "node_modules" / NODE_TOOLS[-1]).exists():
        modules.mkdir(parents=True, exist_ok=True)
        (modules / "package.json").write_text(json.dumps({"private": True}))
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", *NODE_TOOLS], cwd=modules, check=True)
    AwsCli.program = str(TOOLS / "venv/bin/aws")
    Minio.command = (str(python), str(DRIVERS / "minio_py.py"))
    JavaScript.command = ("node", str(DRIVERS / "aws_sdk.mjs"), str(modules))
    absent = [kind.program for kind in (S3cmd, Rclone, Curl) if shutil.which(kind.program) is None]
    if absent or shutil.which("node") is None:
        raise SystemExit(
            f"not on PATH: {', '.join(absent) or 'node'}; scripts/install-system-packages clients installs them"
        )


@contextmanager
def origins(home: Path) -> Iterator[dict[str, str]]:
    """moto and radosgw, by name."""
    with moto_server() as moto:
        radosgw: Radosgw = shared_radosgw(home, _own_pid())
        try:
            yield {"moto": moto, "radosgw": radosgw.endpoint}
        finally:
            stop_radosgw(radosgw)


def _own_pid() -> int:
    return int(Path("/proc/self").resolve().name)


def try_place(
    place: str, endpoints: dict[str, str], home: Path, certificates: Certificates, tried: dict[type[Client], Tried]
) -> None:
    """Try every client at one place."""
    scheme, origin = place.split("-")
    trusted = certificates if scheme == "https" else None
    with ExitStack() as stack:
        made = stack.enter_context(world(endpoints[origin], home / place, trusted))
        tls = certificates.tls if trusted else None
        front = stack.enter_context(Road(made.running.endpoint, tls=tls, record=True))
        made = replace(made, access=replace(made.access, endpoint=front.endpoint))
        for kind, result in tried.items():
            scratch = home / "scratch" / place / kind.__name__
            scratch.mkdir(parents=True)
            started = time.monotonic()
            try_client(place, kind, made, scratch, front, result)
            print(f"{place:14} {kind.name:24} {time.monotonic() - started:6.1f} s", flush=True)


def try_client(place: str, kind: type[Client], made: World, scratch: Path, front: Road, result: Tried) -> None:
    """Try one client: every operation that it has, in every state."""
    client = kind(made.access, scratch)
    try:
        result.version = client.version()
        for operation in OPERATIONS:
            for state, run in trials.STATES.items():
                if not kind.can(operation.needs):
                    continue
                front.heads.clear()
                where = (place, state, operation.name)
                try:
                    run(client, operation, made)
                    result.passed.add(where)
                except Exception as error:
                    result.failures[where] = _why(error)
                    print(f"{kind.name}: {' / '.join(where)}: {result.failures[where]}", flush=True)
                _note(place, front.heads, result)
    finally:
        client.close()


def _why(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:600]} ({Path(last.filename).name}:{last.lineno})"


def _note(place: str, heads: list[Head], result: Tried) -> None:
    for head in heads:
        for form in forms_of(head):
            result.forms[form].add(place.partition("-")[0])


def write_page(tried: dict[str, Tried]) -> None:
    """Replace the table between its markers."""
    pattern = re.compile(r"(<!-- measured: clients -->\n).*?(<!-- end -->)", re.DOTALL)
    table = client_table(tried)
    text, replaced = pattern.subn(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", PAGE.read_text(encoding="utf-8"))
    assert replaced == 1
    PAGE.write_text(text, encoding="utf-8")


def client_table(tried: dict[str, Tried]) -> str:
    """One line for each client: the number of passed operations, by state where they differ, and the failed ones."""
    lines = [f"| client | {', '.join(trials.STATES)} | does not pass, and where |", "|---|---|---|"]
    for name, result in tried.items():
        everything = result.passed | result.failures.keys()
        counts = []
        for state in trials.STATES:
            there = [where for where in everything if where[1] == state]
            counts.append(f"{len([where for where in there if where in result.passed])} of {len(there)}")
        numbers = ", ".join(counts if len(set(counts)) > 1 else counts[:1])
        lines.append(f"| {name} {result.version} | {numbers} | {_failures(result) or 'none'} |")
    return "\n".join(lines)


def _failures(result: Tried) -> str:
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for place, state, operation in result.failures:
        places[operation, place].append(state)
    told: dict[str, list[str]] = defaultdict(list)
    for (operation, place), states in places.items():
        told[operation].append(f"{place} ({', '.join(states)})")
    return "; ".join(f"{operation}: {', '.join(where)}" for operation, where in told.items())


def forms_sent(tried: dict[str, Tried]) -> list[str]:
    """A line for each form of signature, payload and checksum, with the clients that send it."""
    forms: dict[str, list[str]] = defaultdict(list)
    for name, result in tried.items():
        for form, schemes in result.forms.items():
            only = "" if len(schemes) == 2 else f" ({schemes.copy().pop()})"
            forms[form].append(name + only)
    return [f"{form}: {_shorter(names, list(tried))}" for form, names in sorted(forms.items())]


def _shorter(names: list[str], every: list[str]) -> str:
    """The names, or those that are absent if these are fewer; a name may have a scheme behind it."""
    partial = [name for name in names if name not in every]
    absent = [name for name in every if not any(there.startswith(name) for there in names)]
    if not absent and not partial:
        return "all"
    if len(absent) + len(partial) >= len(names):
        return ", ".join(names)
    return "; ".join([f"all but {', '.join(absent)}" if absent else "all", *partial])


if __name__ == "__main__":
    sys.exit(main())
