"""Fingerprints: equal for equal code, different after a change of anything that a function can see, absent in doubt."""

import functools
import multiprocessing
import operator
import pickle
import random
import re
import textwrap
import threading
import types
import warnings
from pathlib import Path

import numpy as np
import pipeline_steps
import pytest
from pipeline_steps import number, pipeline_of, vector

from larder.base.errors import LarderWarning
from larder.pipelines import fingerprint
from larder.pipelines.fingerprint import fingerprints
from larder.pipelines.stages import Stage


def mark(*functions):
    """The fingerprint of a mark after these functions."""
    stages = [Stage("map", place, function, "train.py:9") for place, function in enumerate(functions, 1)]
    return fingerprints((*stages, Stage("autocache", 99)))[99]


def program(source, **names):
    """The function ``f`` of a program, as a module of the user would have it."""
    module = types.ModuleType("users_program")
    vars(module).update(names)
    exec(compile(textwrap.dedent(source), "program.py", "exec"), vars(module))
    return module.f


BASE = """
    import numpy as np
    SIZE = 3
    NAMES = {"a": [1, 2]}
    class Base:
        factor = 2
        def scaled(self, x): return x * self.factor
    class Scale(Base):
        def __init__(self, n): self.n = n
    def helper(x, by=1): return x + by
    def f(x, scale=Scale(5)):
        inner = lambda y: helper(y) + SIZE
        return scale.scaled(inner(np.abs(x))) + len(NAMES["a"])
"""
UNIMPLEMENTED = """
    class Size:
        def __eq__(self, other): return NotImplemented
    def f(x, size=Size()): return x
"""
"""A function with ``NotImplemented``, which a dataclass's methods contain too."""
CHANGES = {
    "a global": ("SIZE = 3", "SIZE = 4"),
    "a value inside of a global": ("[1, 2]", "[1, 3]"),
    "a helper": ("return x + by", "return x - by"),
    "a default of a helper": ("by=1", "by=2"),
    "a base class": ("return x * self.factor", "return x + self.factor"),
    "a class attribute": ("factor = 2", "factor = 3"),
    "the state of a default": ("Scale(5)", "Scale(6)"),
    "a nested function": ("helper(y) + SIZE", "helper(y) * SIZE"),
    "a function of a package": ("np.abs", "np.square"),
    "the code": ('+ len(NAMES["a"])', '- len(NAMES["a"])'),
}


def test_the_same_program_has_the_same_fingerprint():
    """Comments, blank lines and the place in the file do not count."""
    moved = "\n\n    # moved\n" + BASE.replace("SIZE = 3", "SIZE = 3  # three")
    assert mark(program(BASE)).digest == mark(program(moved)).digest != ""


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_the_function_sees_changes_it(change):
    """Code, globals, defaults, classes and nested functions count."""
    assert CHANGES[change][0] in BASE
    assert mark(program(BASE.replace(*CHANGES[change]))).digest not in ("", mark(program(BASE)).digest)


class Doubling:
    """A step with a subclass."""

    def __call__(self, value):
        """Twice the value."""
        return 2 * value


class DoublingLater(Doubling):
    """Its subclass."""


def test_pickling_changes_no_fingerprint():
    """Rule: pickling an object, which adds an attribute to its class, changes no fingerprint."""
    before = mark(DoublingLater()).digest
    pickle.dumps(Doubling())
    assert "__slotnames__" in vars(Doubling)
    assert mark(DoublingLater()).digest == before


def test_closures_and_arguments_count():
    """Closures and partial functions differ by their captured values and arguments."""

    def made(offset):
        return lambda x: x + offset

    digests = {mark(made(1)).digest, mark(made(2)).digest, mark(functools.partial(made(1), 3)).digest}
    assert len(digests) == 3
    assert mark(made(1)).digest in digests


def test_attributes_of_the_users_modules_count():
    """``settings.SIZE`` is followed into the module."""
    digests = set()
    for size in (1, 2):
        settings = types.ModuleType("users_settings")
        settings.SIZE = size
        digests.add(mark(program("def f(x): return x * settings.SIZE", settings=settings)).digest)
    assert len(digests) == 2


def test_attributes_of_a_function_count():
    """A function's own attributes count, because they may hold its settings."""
    digests = set()
    for size in (1, 2):
        function = program("def f(x): return x * f.size")
        function.size = size
        digests.add(mark(function).digest)
    assert len(digests | {""}) == 3


def test_the_order_of_stages_counts():
    """Two functions in another order are another pipeline."""
    assert mark(number, vector).digest != mark(vector, number).digest


def test_names_of_python_have_a_fingerprint():
    """Python's built-in constants have a fingerprint, including ``NotImplemented``, which has no truth value."""
    assert mark(program(UNIMPLEMENTED)).digest


def test_packages_elsewhere_go_by_their_version(tmp_path, monkeypatch):
    """Rule: a package of the user's or the system's site goes by name and version, like one of the environment."""
    site, found = tmp_path / "site-packages", []
    (site / "elsewhere-1.dist-info").mkdir(parents=True)
    (site / "elsewhere.py").write_text(
        "import threading\nLOCK = threading.Lock()\ndef used(x):\n    with LOCK: return x\n"
    )
    monkeypatch.syspath_prepend(str(site))
    for version in (1, 1, 2):
        (site / "elsewhere-1.dist-info" / "METADATA").write_text(f"Name: elsewhere\nVersion: {version}\n")
        (site / "elsewhere-1.dist-info" / "RECORD").write_text("elsewhere.py,,\n")
        for known in (fingerprint._installed, fingerprint._origin, fingerprint._distributions):
            known.cache_clear()
        found.append(mark(program("import elsewhere\ndef f(x): return elsewhere.used(x)")).digest)
    assert found[0] == found[1] != found[2]
    assert all(found)


def test_a_recursive_function_has_a_fingerprint():
    """Cycles end."""
    source = "def f(x): return 1 if x == 0 else x * f(x - 1)"
    assert mark(program(source)).digest == mark(program(source)).digest != ""


def _send_digest(queue):
    queue.put(mark(number, vector).digest)


def test_another_process_finds_the_same():
    """Processes compute equal fingerprints independently, with any hash seed."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_send_digest, args=(queue,))
    process.start()
    assert queue.get() == mark(number, vector).digest
    process.join()


LOCK = threading.Lock()
GENERATOR = np.random.default_rng(1)


def locked(x):
    """Uses a lock, which has no fingerprint."""
    with LOCK:
        return x


def imports_inside(x):
    """Imports a user's module inside the function, where it is not traced."""
    import pipeline_steps_elsewhere  # type: ignore[import-not-found]

    return pipeline_steps_elsewhere.number(x)


def imports_a_known_module(x):
    """Imports a module of the user that others have imported, too."""
    import pipeline_steps

    return pipeline_steps.number(x)


def imports_a_part(x):
    """Imports a module of the user's own package, which has the name of one of Python's."""
    from .random import number  # type: ignore[import-not-found]

    return number(x)


def passes_a_module(x):
    """Uses a module other than by a name in it."""
    steps = pipeline_steps
    return steps.number(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (locked, r"stage 1, map\(locked\), global 'LOCK' is a _thread.lock, which has no fingerprint"),
        (
            imports_inside,
            r"import pipeline_steps_elsewhere inside of a function cannot be followed; import it at the top",
        ),
        (imports_a_known_module, r"import pipeline_steps inside of a function cannot be followed"),
        (imports_a_part, r"import \.random inside of a function cannot be followed"),
        (passes_a_module, r"global 'pipeline_steps' cannot be followed; import it .* use it as module\.name"),
        (functools.partial(vector, pipeline_steps), r"args\[0\] cannot be followed"),
        (functools.partial(vector, open(__file__)), r"args\[0\] is a _io.TextIOWrapper"),  # noqa: SIM115
    ],
)
def test_what_cannot_be_covered_has_no_fingerprint(function, reason):
    """The reason has the path to the culprit."""
    found = mark(function)
    assert found.digest == ""
    assert re.search(reason, found.reason)


def of_random(x):
    """Uses the module ``random``."""
    return x + random.random()


def of_numpy(x):
    """Uses numpy's global generator."""
    return x + np.random.rand()


def of_a_generator(x):
    """Uses its own generator."""
    return GENERATOR.normal() + x


@pytest.mark.parametrize(
    ("function", "used"), [(of_random, "random"), (of_numpy, "np.random"), (of_a_generator, "GENERATOR")]
)
def test_random_functions_are_named_with_their_line(function, used):
    """The line is that of the call, found through helpers too."""
    line = function.__code__.co_firstlineno + 2
    expected = (f"{Path(__file__).name}:{line}, {used}",)
    assert mark(function).random == expected
    assert mark(program("def f(x): return helper(x)", helper=function)).random == expected
    assert mark(number, vector).random == ()


def test_results_that_see_more_than_bytes_are_told_apart():
    """A function that reads the item's index or name may differ for items of equal bytes."""
    assert not mark(number).by_item
    assert mark(lambda item: item.index).by_item
    assert mark(lambda item: item.key).by_item
    assert mark(lambda item: item.offset).by_item
    assert mark(operator.attrgetter("data")).by_item  # no code to look at


def test_a_mark_warns_of_random_functions_and_of_what_is_not_stored():
    """A mark over random functions, or over functions without a fingerprint, warns when it is set, with the reason."""
    with pytest.warns(LarderWarning, match=r"stage 2, autocache\(\) would freeze random numbers: .*\.py:\d+, random$"):
        pipeline_of().map(of_random).autocache()
    with pytest.warns(LarderWarning, match=r"stage 2, autocache\(\) are not stored: .*'LOCK' is a _thread.lock"):
        pipeline_of().map(locked).autocache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline_of().map(number).autocache().map(of_random)
