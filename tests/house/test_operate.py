"""Operators' features (gateway/operate) are declared completely."""

from __future__ import annotations

from pathlib import Path

from gateway import operate
from gateway.admin.endpoints import routers
from gateway.base.config import load_settings
from gateway.base.imports import imported
from gateway.cli import COMMANDS, GROUPS
from gateway.local import starting
from gateway.operate.features import FEATURES


def test_every_folder_is_a_feature_of_the_list() -> None:
    """Rule: a feature is a folder, and the list has each; nothing else of the gateway names it."""
    folders = [each.parent.name for each in Path(operate.__path__[0]).glob("*/__init__.py")]
    declared = [imported(f"gateway.operate.{name}").FEATURE for name in folders]
    assert sorted(map(repr, declared)) == sorted(map(repr, FEATURES))


def test_a_feature_names_modules_that_have_what_is_asked_of_them() -> None:
    """Rule: a command's module has ``add``, that of endpoints ``router``, that of the wiring ``start``."""
    for feature in FEATURES:
        assert [each.module for each in feature.commands if not callable(imported(each.module).add)] == []
        assert [each.module for each in feature.endpoints if not imported(each.module).router.routes] == []
        assert not feature.wiring or callable(imported(feature.wiring).start)
        assert not feature.follows or callable(imported(feature.wiring).follow)


def test_workers_are_forked_with_the_endpoints_of_features() -> None:
    """Rule: the supervisor of several workers imports what each would import, if a token opens the admin API."""
    environ = {"LARDER_ORIGINS__0__ENDPOINT": "http://origin", "LARDER_SERVER__WORKERS": "2"}
    wanted = {each.module for feature in FEATURES for each in feature.endpoints}
    assert wanted & {*starting._modules(load_settings(None, environ))} == set()
    assert wanted <= {*starting._modules(load_settings(None, {**environ, "LARDER_ADMIN__TOKEN": "a-token"}))}


def test_every_command_has_a_group() -> None:
    """Rule: each command is listed below a heading, and each heading has commands."""
    assert {command.place // 100 for command in COMMANDS} == {*range(len(GROUPS))}


def test_every_place_is_taken_once() -> None:
    """Rule: the order of commands, and of addresses in the API's description, is decided: no two have one place."""
    places = [command.place for command in COMMANDS]
    assert len({*places}) == len(places)
    assert len({each.name for each in COMMANDS}) == len(places)
    described = [each.place for feature in FEATURES for each in feature.endpoints]
    assert len({*described}) == len(described)
    assert len(routers(FEATURES)) == len({id(router) for router in routers(FEATURES)})
