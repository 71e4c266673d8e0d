"""The public API of the package: a change of it is a decision, never an accident."""

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

SNAPSHOT = Path(__file__).with_name("public_api.json")
MODULES = ("larder", "larder.digest", "larder.planner")


def parameters(function: Any) -> list[str]:
    """The parameters that a caller can give; options of a ``TypedDict`` count as keyword-only parameters."""
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            unpacked = get_args(get_type_hints(function, include_extras=True).get(name))
            found += [f"{option}=" for option in unpacked[0].__annotations__] if unpacked else [f"**{name}"]
        elif parameter.kind is parameter.KEYWORD_ONLY:
            found.append(f"{name}=")
        else:
            found.append(name)
    return sorted(found, key=lambda name: name if name.endswith("=") else "")


def described(value: Any) -> Any:
    """The members of a class with their parameters; the parameters of a function; the type of anything else."""
    if not inspect.isclass(value):
        return parameters(value) if callable(value) else type(value).__name__
    members: dict[str, Any] = {"bases": [base.__name__ for base in value.__mro__[1:-1]]}
    own = set(dir(value)) - (set(dir(BaseException)) - {"__init__"} if issubclass(value, BaseException) else set())
    for name in sorted(own):
        if name.startswith("_") and name not in ("__init__", "__iter__", "__len__", "__enter__", "__exit__"):
            continue
        member = inspect.getattr_static(value, name)
        function = getattr(member, "__func__", member)
        members[name] = parameters(function) if inspect.isfunction(function) else "value"
    return members


@pytest.mark.parametrize("module", MODULES)
def test_the_public_api_is_the_recorded_one(module):
    """Names, members and parameters are those of public_api.json, which a deliberate change edits."""
    public = import_module(module)
    found = {name: described(getattr(public, name)) for name in public.__all__}
    assert found == json.loads(SNAPSHOT.read_text())[module]


@pytest.mark.parametrize(
    ("module", "place"), [("larder.frames", "larder.reading.frames"), ("larder.source", "larder.reading.source")]
)
def test_programs_find_modules_where_they_were(module, place):
    """Modules that programs imported before the packages still give the same objects."""
    former = import_module(module)
    assert former.__all__
    assert all(getattr(former, name) is getattr(import_module(place), name) for name in former.__all__)
