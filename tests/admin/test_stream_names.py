"""Addresses of access streams below ``/-/admin``."""

import pytest
from starlette.routing import Match

from gateway.admin.fleet.streams import router, show_stream


@pytest.mark.parametrize("name", ["lake/", "lake/a\nb/", "lake/a\n", "lake//../x"])
def test_a_name_of_any_characters_is_an_address(name):
    """Rule: a prefix may have line breaks and dots; its stream is shown all the same."""
    (route,) = [each for each in router.routes if each.endpoint is show_stream]
    matches, scope = route.matches({"type": "http", "method": "GET", "path": f"/streams/{name}"})
    assert (matches, scope["path_params"]) == (Match.FULL, {"name": name})
