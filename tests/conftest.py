"""Settings and plug-ins of all tests."""

import os

from hypothesis import settings

# OpenMP's threads, which PyTorch uses, wait for each other in busy loops. With more processes than cores, as here, a step of a
# small network took thirty times the processor time with two threads. PyTorch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The duration of an example depends on the machine, and is not what the tests check.
settings.register_profile("larder", deadline=None, print_blob=True)
# `make fuzz`: new examples in every run, and many.
settings.register_profile("fuzz", settings.get_profile("larder"), max_examples=5000, derandomize=False, database=None)
settings.load_profile("larder")

pytest_plugins = ["tests.collecting", "tests.leftovers", "tests.fixtures"]
