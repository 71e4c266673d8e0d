"""A real radosgw for the tests: an S3 server that verifies signatures, dates and rights.

A one-node Ceph cluster in memory: one monitor, one OSD with a memory store, one gateway. There is no manager: it only reports,
and takes more processor time than all others together. Debian's packages are radosgw, ceph-mon, ceph-osd and ceph-common. All
daemons belong to one process, this module run as a program. It ends them, by their ids, on request or when the watched process
ends. So a killed test run leaves no cluster behind, and the workers of pytest-xdist can share a cluster.

    python -m rig.radosgw DIRECTORY PORT WATCHED_PID
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from rig.processes import MARK, alive, free_port, missing, speaks_http, wait_until

PROGRAMS = ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "monmaptool")
USERS = (("tenant-a", "origin-key-a", "origin-secret-a"), ("tenant-b", "origin-key-b", "origin-secret-b"))
_READY_WITHIN = 240.0

_CONFIGURATION = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon_port}/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms bind ipv6 = false
ms bind msgr1 = false
ms mon client mode = crc
ms client mode = crc
ms service mode = crc
ms cluster mode = crc
osd objectstore = memstore
memstore device bytes = 2147483648
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd max object name len = 1024
mon allow pool size one = true
mon max pg per osd = 2000
mon data avail crit = 1
mon data avail warn = 2
run dir = {directory}
crash dir = {directory}
admin socket = {directory}/$name.$pid.asok
pid file = {directory}/$name.pid
log file = {directory}/$name.log
mon data = {directory}/mon
osd data = {directory}/osd
setuser match path = {directory}

[client.rgw]
rgw data = {directory}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw thread pool size = 16
rgw enable usage log = false
rgw enable ops log = false
rgw dynamic resharding = false
rgw override bucket index max shards = 1
rgw crypt require ssl = false
rgw s3 auth use sts = true
rgw sts key = abcdefghijklmnop
"""


@dataclass(frozen=True)
class Radosgw:
    """A running radosgw: its address, the process that owns it, and two users who own their buckets separately."""

    endpoint: str
    pid: int
    users: tuple[tuple[str, str, str], ...] = USERS


class _Cluster:
    """The daemons, in the order in which they were started."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._configuration = directory / "ceph.conf"
        self._endpoint = f"http://127.0.0.1:{port}"
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("mon", "osd", "rgw"):
            (directory / name).mkdir(parents=True)
        self._fsid = str(uuid.uuid4())
        self._mon_port = free_port()
        settings = {"fsid": self._fsid, "mon_port": self._mon_port, "directory": directory, "port": port}
        self._configuration.write_text(_CONFIGURATION.format(**settings))
        self._log = (directory / "output.log").open("ab")

    def start(self) -> None:
        """Bring everything up and create the users."""
        monitors = self._directory / "monmap"
        address = f"[v2:127.0.0.1:{self._mon_port}]"
        self._do("monmaptool", "--create", "--addv", "a", address, "--fsid", self._fsid, "--clobber", str(monitors))
        self._do("ceph-mon", *self._conf, "--mkfs", "-i", "a", "--monmap", str(monitors))
        self._launch("ceph-mon", *self._conf, "-i", "a", "-f")
        wait_until(lambda: self._ceph("mon", "stat") is not None, 60, "the start of the monitor")
        osd = str(uuid.uuid4())
        self._do(*self._client, "osd", "new", osd)
        self._do("ceph-osd", *self._conf, "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._do(*self._client, "osd", "crush", "add", "osd.0", "1", "root=default", "host=local")
        self._launch("ceph-osd", *self._conf, "-i", "0", "-f")
        wait_until(lambda: "1 up" in (self._ceph("osd", "stat") or ""), 60, "the start of the OSD")
        self.launch_gateway()
        wait_until(lambda: speaks_http(self._endpoint), 120, "the start of radosgw")
        for user, key, secret in USERS:
            admin = ("radosgw-admin", *self._conf, "-n", "client.rgw", "user", "create")
            self._do(*admin, "--uid", user, "--display-name", user, "--access-key", key, "--secret", secret)

    def launch_gateway(self) -> None:
        """Start radosgw, the last of the daemons."""
        self._launch("radosgw", *self._conf, "-n", "client.rgw", "-f")

    def tend(self) -> None:
        """Restart radosgw if it has died: version 16 aborts on some requests (UploadPartCopy of a key with "%25")."""
        if self._daemons[-1].poll() is not None:
            self._daemons.pop()
            self.launch_gateway()

    def stop(self) -> None:
        """End the daemons. They keep no data, so there is nothing to wait for."""
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()
        self._log.close()

    @property
    def _conf(self) -> tuple[str, str]:
        return "-c", str(self._configuration)

    @property
    def _client(self) -> tuple[str, ...]:
        return "ceph", *self._conf, "--connect-timeout", "10"

    def _ceph(self, *command: str) -> str | None:
        ran = subprocess.run(
            [*self._client, *command], stdout=subprocess.PIPE, stderr=self._log, text=True, check=False
        )
        return ran.stdout if ran.returncode == 0 else None

    def _do(self, *command: str) -> None:
        subprocess.run(command, stdout=self._log, stderr=self._log, check=True)

    def _launch(self, *command: str) -> None:
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        self._daemons.append(daemon)


def shared_radosgw(run_directory: Path, watched_pid: int) -> Radosgw:
    """The radosgw of this test run; the first caller starts it, the others wait for it.

    Args:
        run_directory: common to all workers of the run.
        watched_pid: the process with which the cluster ends.
    """
    if absent := missing(PROGRAMS):
        raise RuntimeError(f"radosgw cannot start, {', '.join(absent)} not found: run `make setup` (Debian, as root)")
    with (run_directory / "radosgw.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        facts = run_directory / "radosgw.json"
        if not facts.exists():
            facts.write_text(json.dumps(asdict(_start(watched_pid))))
        known = json.loads(facts.read_text())
    return Radosgw(known["endpoint"], known["pid"])


def stop_radosgw(gateway: Radosgw) -> None:
    """End the cluster now; otherwise it ends with the watched process."""
    if alive(gateway.pid):
        os.kill(gateway.pid, signal.SIGTERM)
        os.waitpid(gateway.pid, 0)


def _start(watched_pid: int) -> Radosgw:
    # Not below pytest's own directory: the paths of Ceph's sockets would be too long for unix(7).
    directory = Path(tempfile.mkdtemp(prefix="rgw-"))
    port = free_port()
    command = [sys.executable, "-m", "rig.radosgw", str(directory), str(port), str(watched_pid)]
    # Under pytest-xdist it outlives the worker that starts it.
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    owner = subprocess.Popen(
        command,
        cwd=Path(__file__).parents[1],
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ready = directory / "ready"
    wait_until(lambda: ready.exists() or owner.poll() is not None, _READY_WITHIN, "the start of radosgw")
    if owner.poll() is not None:
        raise RuntimeError(f"radosgw did not start; see {directory}")
    # stop_radosgw waits for the child by its id; Popen must not warn about it at exit.
    owner.returncode = 0
    return Radosgw(f"http://127.0.0.1:{port}", owner.pid)


def _own(directory: Path, port: int, watched_pid: int) -> None:
    """Run a cluster until SIGTERM or the end of the watched process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cluster = _Cluster(directory, port)
    try:
        cluster.start()
        (directory / "ready").touch()
        while alive(watched_pid):
            cluster.tend()
            time.sleep(0.3)
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _own(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
