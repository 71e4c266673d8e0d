"""The systemd unit and the rotation of the access log, as their own programs read them."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.api.s3.access_log import AccessLine, AccessLog
from gateway.base.config_server import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy/systemd/larder-gateway.service"
ROTATION = ROOT / "deploy/logrotate/larder"
EXPOSURE = 20
"""Of 100, as ``systemd-analyze security`` counts; an unrestricted service has 96."""


def program(name: str) -> str:
    """The path of a system administration program."""
    found = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin")
    assert found is not None
    return found


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with the programs of this environment in the place of those at /opt/larder."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/larder/bin", str(Path(sys.executable).parent)))
    return copy


def setting(name: str) -> list[str]:
    """The values of a setting of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_systemd_understands_the_unit(unit: Path) -> None:
    """Rule: ``systemd-analyze verify`` reports no unknown setting and no missing program."""
    done = subprocess.run(
        [program("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])


def test_the_unit_may_do_little(unit: Path) -> None:
    """Rule: systemd's exposure rating of the service stays low."""
    command = [program("systemd-analyze"), "security", "--offline=yes", f"--threshold={EXPOSURE}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_unit_waits_for_the_drain() -> None:
    """Rule: systemd kills later than notice and drain are over, tells the first process only, and checks the file first."""
    assert int(setting("TimeoutStopSec")[0]) > ServerSettings().drain_notice + ServerSettings().drain + 10
    assert setting("KillMode") == ["mixed"]
    assert setting("ExecStartPre")[0].split()[1:] == ["check-config", setting("ExecStart")[0].split()[-1]]


def line(key: str) -> AccessLine:
    """A line of the access log."""
    return AccessLine(
        "bucket", key, "127.0.0.1", "vision", "1", "GET", f"/bucket/{key}", 200, "", 1, 0.1, 0.1, "", "", "", "", "h",
        False, "HIT",
    )  # fmt: skip


def rotate(folder: Path) -> None:
    """Run logrotate as at midnight, with the repository's configuration adapted to this folder and user."""
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    text = ROTATION.read_text().replace("/var/log/larder", str(folder)).replace("larder larder", f"{user} {group}")
    file = folder / "rotation"
    file.write_text(text)
    file.chmod(0o644)
    command = [program("logrotate"), "--force", "--state", str(folder / "state"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_line_is_lost_when_the_log_is_rotated(tmp_path: Path) -> None:
    """Rule: after logrotate has renamed the file, lines go to the old one until the next check, then to the new one."""
    tmp_path.chmod(0o755)
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.write(line("before"))
    rotate(tmp_path)
    log.write(line("meanwhile"))
    log.look_every = 0.0
    log.write(line("after"))
    log.close()
    old, new = (tmp_path / "access.log.1").read_text(), path.read_text()
    assert [key for key in ("before", "meanwhile", "after") if f"bucket/{key} " in old] == ["before", "meanwhile"]
    assert [key for key in ("before", "meanwhile", "after") if f"bucket/{key} " in new] == ["after"]


def test_a_log_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    """Rule: a deleted log file is created again; a read-only folder loses log lines and no request."""
    path = tmp_path / "log" / "access.log"
    log = AccessLog(str(path))
    log.look_every = 0.0
    shutil.rmtree(path.parent)
    log.write(line("lost"))
    assert log.enabled
    path.parent.mkdir()
    log.write(line("kept"))
    log.close()
    assert "kept" in path.read_text()
    assert "lost" not in path.read_text()


def test_the_rotation_is_of_the_log_that_the_unit_makes_room_for() -> None:
    """Rule: the unit lets the gateway write to the rotated folder, as the owner of the new file."""
    assert f"/var/log/{setting('LogsDirectory')[0]}/access.log {{" in ROTATION.read_text()
    assert f"create 0600 {setting('User')[0]} {setting('Group')[0]}" in ROTATION.read_text()
