"""Builds the compiled form of a repeated hit (gateway/api/s3/_repeated.c) where there is a C compiler.

Without one the gateway does the same in Python alone. ``LARDER_BUILD_COMPILED=1`` makes a failure an error, for whoever builds a
wheel to publish.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("gateway/api/s3/_repeated.c")
LIBRARY = SOURCE.with_suffix(".abi3.so")


def compiled(root: Path) -> bool:
    """Compile the library in place, unless it is newer than its source; returns whether it is there."""
    source, library = root / SOURCE, root / LIBRARY
    if library.exists() and library.stat().st_mtime_ns >= source.stat().st_mtime_ns:
        return True
    made = library.with_suffix(f".{os.getpid()}")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, "-O2", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source), "-o", str(made)]
    try:
        result = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
        done, failure = result.returncode == 0, result.stderr
    except OSError as error:
        done, failure = False, str(error)
    if done:
        made.replace(library)  # another process may build, or have the old one loaded
        return True
    made.unlink(missing_ok=True)
    library.unlink(missing_ok=True)  # of another source
    if os.environ.get("LARDER_BUILD_COMPILED"):
        raise RuntimeError(f"{SOURCE} cannot be compiled:\n{failure}")
    print(f"{SOURCE} was not compiled, so repeated hits are answered in Python:\n{failure[:500]}", file=sys.stderr)
    return False


class CompiledHits(BuildHookInterface):
    """The build hook of hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to a wheel, which then is one for this platform and every Python from 3.11."""
        if sys.platform != "linux" or not compiled(Path(self.root)):
            return
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"
