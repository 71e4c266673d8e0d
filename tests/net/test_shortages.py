"""Out of descriptors or memory: the error says so, and blames neither origin nor disk."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from gateway.api.s3.errors import as_s3_error
from gateway.base.shortages import SHORTAGES, Shortages, shortage_of
from gateway.model.errors import OutOfResources
from gateway.net import dialing
from gateway.policies.health.breaker import Breaker, BreakerState, Failed, FailureKind
from gateway.store.files.failures import disk_fault
from rig.origin import FakeOrigin
from tests.origin.raw_server import AS_ALICE, client_for, origin_at

EMFILE = OSError(errno.EMFILE, "Too many open files")


def caused(error: Exception) -> Exception:
    """A library's error that was made from another one."""
    outer = ConnectionError("it failed")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "wanting"),
    [
        (EMFILE, "file descriptors"),
        (OSError(errno.ENFILE, "x"), "file descriptors of the system"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory or address space"),
        (MemoryError(), "memory or address space"),
        (RuntimeError("can't start new thread"), "threads or memory"),
        (caused(EMFILE), "file descriptors"),
        (ExceptionGroup("both", [ValueError(), EMFILE]), "file descriptors"),
        (OperationalError("x", {}, EMFILE), "file descriptors"),
        (OSError(errno.ECONNREFUSED, "x"), ""),
        (OSError(errno.EIO, "x"), ""),
        (socket.gaierror(socket.EAI_AGAIN, "x"), ""),
        (socket.gaierror(socket.EAI_MEMORY, "x"), "memory or address space"),
        (sqlite3.OperationalError("unable to open database file"), ""),
    ],
    ids=str,
)
def test_what_is_wanting(error: Exception, wanting: str) -> None:
    """Rule: errno, memory and threads are recognised, also in the causes of an error; everything else is not."""
    assert shortage_of(error) == wanting


async def test_an_origin_is_not_lost_for_want_of_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: without a descriptor the origin is not asked: clients get SlowDown, and the origin does not count as lost."""

    async def exhausted(*_: object, **__: object) -> None:
        raise EMFILE

    async with FakeOrigin() as origin:
        client = await client_for(origin_at(origin.endpoint, check_timeout=60.0))
        monkeypatch.setattr(dialing, "start_connection", exhausted)
        with pytest.raises(OutOfResources, match="out of file descriptors") as refused:
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        assert as_s3_error(refused.value).code == "SlowDown"
        client.reach(AS_ALICE).doubt()
        await asyncio.wait_for(client.reach(AS_ALICE)._probing, 10)
        assert not client.lost(AS_ALICE)
        assert any("file descriptors" in problem for problem in SHORTAGES.problems())
        await client.close()


@pytest.mark.parametrize(
    "error", [EMFILE, OSError(errno.ENOMEM, "x"), MemoryError(), OperationalError("x", {}, EMFILE)]
)
def test_the_disk_is_not_broken_for_want_of_a_descriptor(error: Exception) -> None:
    """Rule: however often it happens, the cache disk stays in use."""
    breaker = Breaker()
    for second in range(20):
        fault = disk_fault(error)
        assert fault is not None
        assert fault.kind is FailureKind.EXHAUSTED
        breaker.handle(Failed(fault.kind), float(second) / 10)
    assert breaker.state is BreakerState.NORMAL


def test_a_shortage_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Rule: the log says what is wanting and the limit, not for each request."""
    shortages = Shortages()
    with caplog.at_level(logging.ERROR, "larder.app"):
        for _ in range(50):
            assert shortages.record(EMFILE, "connecting")
    assert len(caplog.records) == 1
    assert "out of file descriptors (its limit is" in caplog.records[0].getMessage()
