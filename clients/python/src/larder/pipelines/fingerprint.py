"""Fingerprints: functions with equal ones compute equal results.

The fingerprint of a mark covers everything that the functions before it can see: their code with nested functions, defaults,
closures, the globals that they name, partial arguments and the state of objects; for installed packages, it covers name and
version instead of code and state. File names and line numbers are left out. A function that cannot be covered has no fingerprint,
and its results are not shared: a wrong result in a cache is worse than none.

Attributes are followed through modules (``helpers.SIZE``); methods are covered by their object's class. A module of the user that
is used in another way, such as imported inside a function or passed on, has no fingerprint. Not covered: files that a function
opens, environment variables, and names that are computed (``getattr(module, name)``).

Workers run the functions they were sent with their own modules' globals: a global that the training process has changed has its
first value there, and a package may have another version on another machine. So each worker computes the fingerprint of its own
functions, and uses stored results only if it equals the trainer's (`result_name`).

Random numbers that a function uses before a mark of one version would be frozen; `Fingerprint.random` has the places. Those of
several versions follow the pipeline's seed, which then is part of the name.
"""

from __future__ import annotations

import dis
import enum
import functools
import random
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from larder.base.errors import LarderError
from larder.pipelines.elements import MAGIC, encode
from larder.pipelines.stages import AUTOCACHE, Stage

if sys.version_info >= (3, 11):
    from importlib import metadata
else:  # Python 3.10's function only knows packages with a top_level.txt
    import importlib_metadata as metadata

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Bytecode differs between versions of Python, so fingerprints do, too."""
_VALUES = (type(None), bool, int, float, complex, str, bytes, np.ndarray)
_NAMED = (types.EllipsisType, types.NotImplementedType, np.dtype, re.Pattern, range, slice, PurePath)
_CLASS_NOISE = frozenset({
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__abstractmethods__", "_abc_impl", "__hash__",
    "__parameters__", "__firstlineno__", "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__slots__",
    "__slotnames__",
})  # fmt: skip
_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, whether of the environment, the user or the system."""
_ITEM_NAMES = frozenset({"index", "bucket", "key", "name", "offset"})
_RANDOM_MODULES = ("random", "secrets", "uuid", "numpy.random", "torch.random", "torch.distributions")
_RANDOM_TYPES = (random.Random, np.random.Generator, np.random.RandomState)
_RANDOM_OF_TORCH = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial", "normal",
    "poisson", "dropout",
})  # fmt: skip
_RANDOM_METHODS = frozenset({
    "uniform_", "normal_", "bernoulli_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_",
})  # fmt: skip
_AUGMENTATIONS = frozenset({"torchvision", "albumentations", "kornia", "monai", "imgaug", "audiomentations"})
_RANDOM_CLASS = re.compile("Random|Jitter|RandAugment|AutoAugment|TrivialAugment|AugMix|Elastic|Dropout|Noise")


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint that names the results of a mark.

    Args:
        digest: SHA-256, 64 hexadecimal digits; empty if the functions cannot be covered.
        reason: why they cannot.
        random: places before the mark that use random numbers, such as ``train.py:12, random.random``.
        by_item: whether a result may depend on the item's index or name, not only on its bytes.
        versions: of the mark.
    """

    digest: str
    reason: str = ""
    random: tuple[str, ...] = ()
    by_item: bool = False
    versions: int = 1


def result_name(fingerprint: Fingerprint, *, keys: bool, seed: int) -> str:
    """The name of a mark's results; empty if they are not stored.

    Args:
        fingerprint: the fingerprint of the mark.
        keys: whether items carry bucket and key, as functions see them.
        seed: of the pipeline; it decides what several versions are.
    """
    if not fingerprint.digest:
        return ""
    drawn = f"/seed={seed}/versions={fingerprint.versions}" if fingerprint.versions > 1 else ""
    return sha256(f"{fingerprint.digest}/keys={keys and fingerprint.by_item}{drawn}".encode()).hexdigest()


class _NotCovered(LarderError):
    """A value that has no fingerprint."""


def fingerprints(stages: tuple[Stage, ...]) -> dict[int, Fingerprint]:
    """The fingerprint of each mark, by number of the stage."""
    if all(stage.kind != AUTOCACHE for stage in stages):
        return {}
    marks: dict[int, Fingerprint] = {}
    digest, reason, by_item = sha256(MAGIC + _PYTHON.encode()), "", False
    where: list[str] = []
    for number, stage in enumerate(stages):
        if stage.kind == AUTOCACHE:
            text = "" if reason else digest.hexdigest()
            marks[stage.number] = Fingerprint(text, reason, tuple(dict.fromkeys(where)), by_item, stage.versions)
            if stage.versions > 1:  # later marks have versions of these elements
                digest.update(f"versions={stage.versions}".encode())
            continue
        walk = _Walk(stage.where)
        try:
            digest.update(stage.kind.encode() + walk.of(stage.function, str(stage)))
        except _NotCovered as error:
            reason = reason or str(error)
        where += walk.random
        if number == 0:
            by_item = not walk.attributes or bool(walk.attributes & _ITEM_NAMES)
    return marks


class _Walk:
    """Visits everything that one function can see.

    Args:
        where: file and line of the stage, to report random objects.
    """

    def __init__(self, where: str) -> None:
        self.random: list[str] = []
        self.attributes: set[str] = set()
        """Names of attributes in the code that was visited; empty if none was."""
        self._where = where
        self._in_code = False
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []

    def of(self, value: Any, path: str) -> bytes:
        """A digest of the value.

        Raises:
            _NotCovered: the value, or something that it refers to, has no fingerprint; the message has its path.
        """
        if isinstance(value, _VALUES) and type(value) in _VALUES and not _of_objects(value):
            return _token("value", encode(value))
        if isinstance(value, np.generic):
            return _token("value", encode(value))
        if isinstance(value, _NAMED):
            return _token("named", type(value).__qualname__.encode(), _text(value))
        if id(value) in self._numbers:
            return _token("again", str(self._numbers[id(value)]).encode())
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        if _is_random(value) or _is_random(type(value)):
            self._note_random_object(value)
        return self._composite(value, path)

    def _composite(self, value: Any, path: str) -> bytes:
        if type(value) in (list, tuple):
            parts = [self.of(member, f"{path}[{number}]") for number, member in enumerate(value)]
            return _token(type(value).__name__, *parts)
        if type(value) in (set, frozenset):
            return _token("set", *sorted(_Walk(self._where).of(member, path) for member in value))
        if type(value) in (dict, types.MappingProxyType):
            parts = [
                part
                for key, member in value.items()
                for part in (self.of(key, path), self.of(member, f"{path}[{key!r}]"))
            ]
            return _token("dict", *parts)
        for kind, visit in self._visits():
            if isinstance(value, kind):
                return visit(value, path)
        if isinstance(value, _RANDOM_TYPES):
            return _token(
                "generator", type(value).__qualname__.encode()
            )  # its state changes, and the warning reports that it is random
        return self._object(value, path)

    def _visits(self) -> Iterator[tuple[Any, Callable[[Any, str], bytes]]]:
        yield types.FunctionType, self._function
        yield types.CodeType, lambda code, path: self._code(code, {}, path)
        yield types.ModuleType, lambda module, path: _token("module", _origin(module.__name__, path))
        yield type, self._class
        yield (
            types.MethodType,
            lambda method, path: _token(
                "method", self.of(method.__func__, path), self.of(method.__self__, f"{path}.self")
            ),
        )
        yield (
            functools.partial,
            lambda part, path: _token(
                "partial",
                self.of(part.func, path),
                self.of(part.args, f"{path} args"),
                self.of(part.keywords, f"{path} keywords"),
            ),
        )
        yield (
            (staticmethod, classmethod, functools._lru_cache_wrapper),
            lambda wrapper, path: _token(type(wrapper).__name__, self.of(wrapper.__wrapped__, path)),
        )
        yield (
            property,
            lambda attribute, path: _token(
                "property", *(self.of(f, path) for f in (attribute.fget, attribute.fset, attribute.fdel))
            ),
        )
        yield np.ufunc, lambda function, path: _token("ufunc", _origin("numpy", path), function.__name__.encode())
        yield (types.BuiltinFunctionType, types.MethodWrapperType), self._builtin
        yield (
            (types.MemberDescriptorType, types.GetSetDescriptorType),
            lambda descriptor, path: _token("slot", descriptor.__name__.encode()),
        )
        yield enum.Enum, lambda member, path: _token("enum", self.of(type(member), path), member.name.encode())

    def _builtin(self, function: Any, path: str) -> bytes:
        owner = function.__self__
        name = function.__qualname__.encode()
        if owner is None or isinstance(owner, types.ModuleType):
            return _token("builtin", _origin(function.__module__ or "builtins", path), name)
        return _token("builtin method", name, self.of(owner, f"{path}.self"))

    def _function(self, function: types.FunctionType, path: str) -> bytes:
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        if _installed(function.__module__):
            origin = _origin(function.__module__, path)
            return _token("function", origin, function.__qualname__.encode(), self.of(cells, f"{path} closure"))
        parts = [self._code(function.__code__, function.__globals__, path)]
        names = function.__code__.co_freevars
        parts += [self.of(cell, f"{path}, closure {name!r}") for name, cell in zip(names, cells, strict=False)]
        parts += [
            self.of(function.__defaults__, f"{path} defaults"),
            self.of(function.__kwdefaults__, f"{path} defaults"),
        ]
        parts += [self.of(vars(function), f"{path} attributes")] if vars(function) else []
        return _token("function", *parts)

    def _code(self, code: types.CodeType, names: dict[str, Any], path: str) -> bytes:
        handlers = getattr(code, "co_exceptiontable", b"")  # Python 3.10 has them in the code
        parts = [code.co_code, handlers, "\0".join([*code.co_names, "", *code.co_varnames]).encode()]
        parts.append(f"{code.co_argcount}/{code.co_posonlyargcount}/{code.co_kwonlyargcount}/{code.co_flags}".encode())
        for constant in code.co_consts:
            nested = isinstance(constant, types.CodeType)
            parts.append(self._code(constant, names, path) if nested else self.of(constant, path))
        for chain, line in _references(code):
            self.attributes.update(chain[1:])
            parts.append(self._reference(chain, names, f"{Path(code.co_filename).name}:{line}", path))
        self.attributes.add("")
        return _token("code", *parts)

    def _reference(self, chain: list[str], names: dict[str, Any], line: str, path: str) -> bytes:
        """Describe the value of a global name, following attributes as long as they belong to modules."""
        if chain[-1] in _RANDOM_METHODS:
            self.random.append(f"{line}, {chain[-1]}")
        if chain[0] == "import":
            return _token("import", _origin(chain[1], f"{path}, import {chain[1]} inside of a function"))
        if not chain[0]:
            return b""
        value = names.get(chain[0], _BUILTINS.get(chain[0]))
        if value is None and chain[0] not in names:
            return _token("missing", chain[0].encode())
        used, package = chain[0], ""
        for name in chain[1:]:
            if _is_random(value) or not isinstance(value, types.ModuleType):
                break
            package = value.__name__ if _installed(value.__name__) else ""
            value, used = getattr(value, name, None), f"{used}.{name}"
        if _is_random(value):
            self.random.append(f"{line}, {used}")
        if package:
            return _token("package", _origin(package, path), used.encode())
        before, self._in_code = self._in_code, _is_random(value)
        try:
            return self.of(value, f"{path}, global {used!r}")
        finally:
            self._in_code = before

    def _note_random_object(self, value: Any) -> None:
        """Note an object that is itself random, such as a transform; for code that names such an object, the line is noted
        instead."""
        if not self._in_code:
            self.random.append(f"{self._where}, {_name(value)}")

    def _class(self, kind: type, path: str) -> bytes:
        name = kind.__qualname__.rpartition("<locals>.")[2].encode()
        if _installed(kind.__module__):
            return _token("class", _origin(kind.__module__, path), name)
        members = sorted(  # cloudpickle leaves the descriptors of slots out
            (key, value)
            for key, value in vars(kind).items()
            if key not in _CLASS_NOISE and not isinstance(value, types.MemberDescriptorType)
        )
        parts = [self.of(base, path) for base in kind.__bases__]
        parts += [_token(key, self.of(value, f"{path}.{key}")) for key, value in members]
        return _token("class", name, *parts)

    def _object(self, value: Any, path: str) -> bytes:
        if _is_tensor(value):
            return _token("value", encode(value))
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            kind = type(value)
            raise _NotCovered(f"{path} is a {kind.__module__}.{kind.__qualname__}, which has no fingerprint") from error
        if isinstance(reduced, str):
            return _token("global", _origin(type(value).__module__, path), reduced.encode())
        lists = [list(part) if isinstance(part, Iterator) else part for part in reduced]
        return _token("object", *(self.of(part, path) for part in lists))


_BUILTINS: dict[str, Any] = dict(vars(sys.modules["builtins"]))


def _line_of(instruction: dis.Instruction) -> int | None:
    if sys.version_info >= (3, 11):
        return None if instruction.positions is None else instruction.positions.lineno
    else:
        return instruction.starts_line


def _references(code: types.CodeType) -> Iterator[tuple[list[str], int]]:
    """Each global name in the code, with the attributes after it and its line; attributes of other values follow ``""``."""
    chain: list[str] = []
    loaded: deque[Any] = deque((0, 0), maxlen=2)  # before an import: its relative level and its names
    line = first = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = _line_of(instruction) or line
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain, first = (chain, first) if chain else ([""], line)
            chain.append(instruction.argval)
            continue
        if chain:
            yield chain, first
        chain, first = [], line
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            chain = [instruction.argval]
        elif instruction.opname == "IMPORT_NAME":
            yield ["import", "." * loaded[0] + instruction.argval], line
        loaded.append(instruction.argval)
    if chain:
        yield chain, first


def _is_random(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__ in _RANDOM_MODULES
    if isinstance(value, _RANDOM_TYPES) or isinstance(getattr(value, "__self__", None), _RANDOM_TYPES):
        return True
    module, name = str(getattr(value, "__module__", None) or ""), str(getattr(value, "__name__", ""))
    if module.startswith(_RANDOM_MODULES[3:]) or module in _RANDOM_MODULES:
        return callable(value)
    top = module.partition(".")[0]
    if top == "torch" or (not module and name in _RANDOM_OF_TORCH):
        return name in _RANDOM_OF_TORCH
    return top in _AUGMENTATIONS and bool(_RANDOM_CLASS.search(name))


@functools.lru_cache(maxsize=1024)
def _installed(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package, not to the user."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names or top == "larder":
        return True
    if top in ("", "__main__", "__mp_main__"):
        return False
    file = getattr(sys.modules.get(top), "__file__", None) or _found(top)
    if file is None:
        return top in _distributions()
    return not _PACKAGES.isdisjoint(Path(file).parts)


def _found(top: str) -> str | None:
    """The file of a module that is not imported yet, or a folder if the module has no file."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return spec.origin if spec is not None and spec.origin else next(iter(folders), None)


@functools.lru_cache(maxsize=1024)
def _origin(module: str, path: str) -> bytes:
    """Describe the code of a module by the version of its package.

    Raises:
        _NotCovered: it is the user's own module, and the names used from it are unknown.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"{module} of Python {_PYTHON}".encode()
    if not _installed(module):
        raise _NotCovered(f"{path} cannot be followed; import it at the top of the file, and use it as module.name")
    if top == "larder":
        return f"{module} of larder".encode()
    versions = sorted({f"{name} {metadata.version(name)}" for name in _distributions().get(top, ())})
    version = ", ".join(versions) or str(getattr(sys.modules.get(top), "__version__", ""))
    if not version:
        raise _NotCovered(f"{path} is of the package {top}, whose version is unknown")
    return f"{module} of {version}".encode()


@functools.lru_cache(maxsize=1)
def _distributions() -> dict[str, list[str]]:
    return {name: list(distributions) for name, distributions in metadata.packages_distributions().items()}


def _of_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def _text(value: Any) -> bytes:
    return repr(value).encode()


def _token(kind: str, *parts: bytes) -> bytes:
    digest = sha256(kind.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
