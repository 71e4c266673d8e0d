"""Ids, start tokens and places of nodes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.fleet.nodes.node_id import kept_id, new_boot, place_of
from gateway.model.fleet import is_node_name


def test_a_name_lasts_as_long_as_its_cache(tmp_path: Path) -> None:
    """Rule: it is made once and kept in the cache, which is made if need be; another cache has another."""
    name = kept_id(tmp_path / "new" / "cache", new_boot())
    assert is_node_name(name)
    assert kept_id(tmp_path / "new" / "cache", new_boot()) == name
    assert kept_id(tmp_path / "other", new_boot()) != name
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["node"]


def test_an_operator_may_write_it(tmp_path: Path) -> None:
    """Rule: the file's text is the id, with or without the end of a line."""
    (tmp_path / "node").write_text("rack-1.gw_2\n")
    assert kept_id(tmp_path, new_boot()) == "rack-1.gw_2"


def test_workers_that_start_together_agree(tmp_path: Path) -> None:
    """Rule: the first worker creates the name, atomically, and the others use it."""
    boot = new_boot()
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(lambda _: kept_id(tmp_path, boot), range(64)))
    assert len(names) == 1


@pytest.mark.parametrize("left", [b"", b"two words", b"\xff\xfe", b"x" * 65])
def test_a_file_that_is_no_name_gives_one_for_this_start(tmp_path: Path, left: bytes) -> None:
    """Rule: an invalid file is left unchanged, and the workers of one start agree on another name."""
    (tmp_path / "node").write_bytes(left)
    one, other = new_boot(), new_boot()
    assert kept_id(tmp_path, one) == kept_id(tmp_path, one) != kept_id(tmp_path, other)
    assert is_node_name(kept_id(tmp_path, one))
    assert (tmp_path / "node").read_bytes() == left


def test_a_cache_that_cannot_be_written_gives_one_for_this_start(tmp_path: Path) -> None:
    """Rule: a node whose disk is down still has one name, shared by all its workers."""
    (tmp_path / "file").write_text("")
    boot = new_boot()
    assert kept_id(tmp_path / "file" / "cache", boot) == kept_id(tmp_path / "file" / "cache", boot)


def test_later_starts_have_greater_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: tokens at one place ascend with the starts, and no two are equal."""
    moments = iter([9, 10, 10, 10**18, 10**19])
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    tokens = [new_boot() for _ in range(5)]
    assert tokens[0] < min(tokens[1:3])
    assert max(tokens[1:3]) < tokens[3] < tokens[4]
    assert len(set(tokens)) == 5


def test_a_place_is_an_address_at_a_host() -> None:
    """Rule: the same address on one host is the same place, and the place reveals nothing else."""
    assert place_of("http://a:1") == place_of("http://a:1") != place_of("http://a:2")
    assert "a:1" not in place_of("http://a:1")
