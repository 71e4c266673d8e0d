"""Tells which variables of the environment are settings, and which only look like one.

``LARDER_SECTION__KEY`` is a setting, with two underscores between section and key. Every other variable belongs to something
else, even if it begins with ``LARDER_``: the client and the command line have some, and Kubernetes creates several for every
Service, such as ``LARDER_PORT=tcp://10.0.0.1:9000`` for one called larder (kubernetes.io, "Service", environment variables).
Those that resemble a setting are named in a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

_PREFIX = "LARDER_"
_BETWEEN = "__"
_OTHER_PROGRAMS = frozenset({"LARDER_ENDPOINT", "LARDER_ORIGIN_ENDPOINT", "LARDER_ADMIN_TOKEN"})
"""Variables of the command lines and the Python client."""
_OF_A_SERVICE = re.compile(
    r".*_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_PROTO|_PORT|_ADDR)?)"
)
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://.*")
"""The value of ``..._PORT`` that Kubernetes sets for a Service."""
_ALIKE = 0.85
"""The lowest similarity (difflib, at most 1) at which an unknown name is taken for a setting."""

Sections = Mapping[str, tuple[bool, tuple[str, ...]]]
"""The tables of the configuration by name: whether a table is a list of tables, and its keys."""


def settings_in(environ: Mapping[str, str]) -> list[tuple[str, list[str], str]]:
    """The settings of an environment, known or not: name, path in the configuration, value.

    Items of a list are sorted by number, as an environment has no order.
    """
    names = [name for name, value in environ.items() if _BETWEEN in _rest(name) and not _of_a_service(name, value)]
    return [(name, _rest(name).lower().split(_BETWEEN), environ[name]) for name in sorted(names, key=_in_order)]


def variable(field: str) -> str:
    """The name of the variable that is a setting, as ``cache.dir`` or ``origins.0.region``."""
    return _PREFIX + field.replace(".", _BETWEEN).upper()


def lookalikes(environ: Mapping[str, str], sections: Sections) -> list[str]:
    """Warnings about ignored variables that resemble settings."""
    known = {_flat(name): name for name in _names(sections)}
    warnings = []
    for name, value in sorted(environ.items()):
        rest = _rest(name)
        if not rest or _BETWEEN in rest or name in _OTHER_PROGRAMS or _of_a_service(name, value):
            continue
        meant = get_close_matches(_flat(name), list(known), n=1, cutoff=_ALIKE)
        if meant:
            warnings.append(f"{name} is not a setting and is ignored; did you mean {known[meant[0]]}?")
        elif rest.lower().startswith(tuple(f"{section}_" for section in sections)):
            warnings.append(f"{name} is not a setting and is ignored: separate section and key by two underscores")
    return warnings


def _rest(name: str) -> str:
    """The name without its prefix; empty if it has another prefix."""
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def _of_a_service(name: str, value: str) -> bool:
    return bool(_OF_A_SERVICE.fullmatch(name) or (name.endswith("_PORT") and _ADDRESS.fullmatch(value)))


def _in_order(name: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else 0, part) for part in name.split(_BETWEEN)]


def _names(sections: Sections) -> list[str]:
    return [
        variable(".".join([section, *(["0"] if listed else []), key]))
        for section, (listed, keys) in sections.items()
        for key in keys
    ]


def _flat(name: str) -> str:
    """The name normalised: one underscore and two are equal, and so are the items of a list."""
    return re.sub(r"_[0-9]+_", "_0_", re.sub(r"_+", "_", name))
