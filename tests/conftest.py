"""What holds for every test."""

from hypothesis import settings

# The machine that runs the tests decides how long an example takes, and that is not what a test is about.
settings.register_profile("larder", deadline=None, print_blob=True)
settings.load_profile("larder")

pytest_plugins = ["tests.origins.fixtures"]
