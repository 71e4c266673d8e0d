"""Addresses of access streams below ``/-/admin``."""

import pytest
from starlette.routing import Match

from gateway.admin.fleet.streams import router, show_stream


@pytest.mark.parametrize("name", ["lake/", "lake/a\nb/", "lake/a\n", "lake//../x"])
def test_a_name_of_any_characters_is_an_address(name):
    """Rule: a stream whose prefix has line breaks or dots has an address like any other."""
    (route,) = [each for each in router.routes if each.endpoint is show_stream]
    matches, scope = route.matches({"type": "http", "method": "GET", "path": f"/streams/{name}"})
    assert (matches, scope["path_params"]) == (Match.FULL, {"name": name})
