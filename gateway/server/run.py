"""Runs the gateway's application: sockets, workers, signals.

A single worker runs in this process. Several workers accept from shared sockets; uvicorn's supervisor starts and replaces them.
The sockets are bound here, so that an address in use is reported as a configuration error and not as a failure of a worker. With
``server.unix_socket`` they accept from a unix socket too (local.py).

Workers are forked from a supervisor that has imported the application: its modules are imported once per node and share their
memory, and a dead worker is replaced at once (docs/decisions/0027-workers-are-forked.md).

Signals: SIGTERM and SIGINT stop accepting and let the requests in flight finish, for at most ``drain`` seconds; a further SIGINT
does not wait. ``before_stop`` lets an application act first, and may keep accepting for a while after SIGTERM; SIGINT, sent by a
person, and any second signal end that. SIGHUP stops nothing; it is passed to every worker, whose application may handle it.
Workers end with their supervisor, however it ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import multiprocessing
import os
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.supervisors.multiprocess import SIGNALS, Multiprocess, Process

from gateway.base.config_server import ServerSettings
from gateway.base.imports import imported
from gateway.model.errors import ConfigError
from gateway.server.limits import ClientLimits
from gateway.server.listening import BACKLOG, address_of, listen, listen_for_operators
from gateway.server.local import LOCAL, LocalListener
from gateway.server.stoppable import StoppableServer

LISTENING = "_LARDER_LISTENING"
"""The environment variable that passes the actual address to every worker, as ``http://host:port``."""
OPERATORS = "_LARDER_OPERATORS"
"""The environment variable that passes the address of operators' pages in the same form; empty if there are none."""

_PR_SET_PDEATHSIG = 1
_M_ARENA_MAX = -8
_LOOK = 0.1
"""Seconds between checks for signals while workers end."""
_WITHHELD = {signal.SIGINT, signal.SIGHUP}
"""Signals blocked until a worker has handlers for them: by default SIGINT prints a traceback, and SIGHUP ends the process."""
_PROTOCOL = "gateway.server.protocol"
_HANDSHAKE = "gateway.server.handshake"
_OF_WORKERS = (_PROTOCOL, "uvicorn.lifespan.on", "uvicorn.loops.uvloop")
"""Modules that uvicorn imports when a worker starts."""
_FORKING = multiprocessing.get_context("fork")
logger = logging.getLogger("larder.server")


@dataclass(frozen=True)
class Launch:
    """The application to run.

    ``factory`` names a function without arguments that creates the ASGI application, as ``"module:function"``; every worker
    calls it. ``environ`` is added to the environment first. ``announce`` is called with the actual address. ``modules`` are
    further modules that the application will import. ``ready`` is called after their import, and returns when the application
    can start. ``operators`` is the address of operators' pages for ``listen_for_operators``, or ``None``.
    """

    factory: str
    environ: Mapping[str, str] = field(default_factory=dict)
    announce: Callable[[str], None] = logger.info
    loop: str = "uvloop"
    modules: tuple[str, ...] = ()
    ready: Callable[[], None] | None = None
    operators: str | None = None


class TlsConfig(Config):
    """uvicorn's configuration for a server that accepts plain connections; ``handshake.py`` secures them with ``tls``."""

    tls: ssl.SSLContext

    def load(self) -> None:
        """Load the application named by the configuration."""
        super().load()
        assert self.ssl is not None
        self.tls, self.ssl = self.ssl, None


def serve(settings: ServerSettings, launch: Launch) -> int:
    """Serve until told to stop; returns the exit status of the process (0 after a requested stop).

    Raises:
        ConfigError: an address cannot be bound, the TLS files cannot be read, or ``launch.ready`` raised it.
    """
    os.environ.update(launch.environ)
    _raise_file_limit()
    use_one_arena()
    config = _config(settings, launch)
    with ExitStack() as stack:
        listener = stack.enter_context(listen(settings))
        sockets = [listener]
        os.environ[LOCAL] = os.environ[OPERATORS] = ""
        if launch.operators is not None and (pages := listen_for_operators(launch.operators, settings, listener)):
            sockets.append(stack.enter_context(pages))
            os.environ[OPERATORS] = address_of(pages, tls=bool(settings.tls_cert))
        if settings.unix_socket:
            local = LocalListener(settings.unix_socket, BACKLOG)
            stack.callback(local.close)
            sockets.append(local.socket)
            os.environ[LOCAL] = str(local.address)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        address = address_of(listener, tls=bool(settings.tls_cert))
        os.environ[LISTENING] = address
        launch.announce(f"listening on {address}")
        if os.environ[OPERATORS]:
            launch.announce(f"console at {os.environ[OPERATORS]}/-/")
        if settings.unix_socket:
            launch.announce(f"listening on {settings.unix_socket}, for clients on this machine")
        return _run(config, launch, sockets)


def _run(config: Config, launch: Launch, sockets: list[socket.socket]) -> int:
    try:
        _import(launch)
        if launch.ready is not None:
            launch.ready()
        if config.workers > 1:
            _Supervisor(config, sockets=sockets).run()
        else:
            StoppableServer(config).run(sockets=sockets)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def before_stop(work: Callable[[], None], notice: float = 0.0) -> None:
    """Call ``work`` in the running event loop when this process receives a stop signal; requests in flight continue.

    Does nothing in a process that was not started by ``serve``, which does not own its signal handlers.

    Args:
        work: runs before the stop.
        notice: seconds after SIGTERM in which new connections are still accepted, so that load balancers see that the gateway is
            not ready before they are refused.
    """
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        return
    following = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop = _Stop(loop, work, notice, {number: handler for number, handler in following.items() if callable(handler)})
    for number in stop.following:
        signal.signal(number, stop)


@dataclass
class _Stop:
    """Handles signals for ``before_stop``: runs its work, then the handlers ``following``."""

    loop: asyncio.AbstractEventLoop
    work: Callable[[], None]
    notice: float
    following: Mapping[int, Callable[[int, FrameType | None], Any]]
    notified: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        first, self.notified = not self.notified, True
        open_ = not self.loop.is_closed()
        if first and open_:
            self.loop.call_soon_threadsafe(self.work)
        if first and open_ and number == signal.SIGTERM and self.notice > 0:
            self.loop.call_soon_threadsafe(self.loop.call_later, self.notice, self.following[number], number, None)
        else:
            self.following[number](number, frame)


def _config(settings: ServerSettings, launch: Launch) -> Config:
    for name in ("tls_cert", "tls_key"):
        path = getattr(settings, name)
        if path and not os.access(path, os.R_OK):
            raise ConfigError(f"server.{name}: {path} cannot be read")
    if settings.tls_cert:
        try:
            # Pass any password: without one, OpenSSL prompts at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key, password="")
        except (ssl.SSLError, OSError):
            raise ConfigError(
                "server.tls_cert, server.tls_key: must be a PEM certificate chain and its private key, without a password"
            ) from None
    supervisor = os.getpid() if settings.workers > 1 else 0
    config = (TlsConfig if settings.tls_cert else Config)(
        app=partial(_load, launch.factory, supervisor),
        factory=True,
        interface="asgi3",
        http=f"{_HANDSHAKE}:Handshake" if settings.tls_cert else f"{_PROTOCOL}:GatewayProtocol",
        ws="none",
        loop=launch.loop,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        workers=settings.workers,
        backlog=BACKLOG,
        limit_concurrency=None,  # the application sheds load and counts it
        timeout_keep_alive=math.ceil(settings.keep_alive),
        timeout_graceful_shutdown=math.ceil(settings.drain),
        timeout_worker_healthcheck=30,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )
    # Its protocol reads the socket.
    config.limits = ClientLimits(  # type: ignore[attr-defined]
        settings.max_connections, settings.body_timeout, settings.min_rate
    )
    return config


def _import(launch: Launch) -> None:
    """Import the application's modules, once for all workers."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor, which passes it on, is not running yet
    for name in (launch.factory.partition(":")[0], *launch.modules, *_OF_WORKERS):
        imported(name)
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]  # the gauges of the supervisor, which has no values


def _load(factory: str, supervisor: int) -> Any:
    """Create the application in the process that will run it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if supervisor:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WITHHELD)
        _raise_file_limit()
        _end_with(supervisor)
    module, _, function = factory.partition(":")
    return getattr(imported(module), function)()


def _end_with(supervisor: int) -> None:
    """Have the kernel send SIGTERM when the supervisor dies: orphans would hold the port."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:
        raise SystemExit(0)


def use_one_arena() -> None:
    """Have all threads of this process, and of those that it forks, allocate from one heap (mallopt(3), M_ARENA_MAX).

    By default glibc gives each thread a heap, up to eight per core, and returns memory only at the end of each heap. A worker
    then keeps growing while short-lived buffers move between heaps. The event loop holds the interpreter most of the time, so a
    single heap is not contended. ``MALLOC_ARENA_MAX`` in the environment takes precedence.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not every libc has it
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, 1)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


@contextmanager
def _withheld() -> Iterator[None]:
    """Block signals in this process, and in those that it forks until they unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker(Process):
    """A worker, forked from the supervisor."""

    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self.process = _FORKING.Process(target=self._begin, args=(sockets,))  # type: ignore[assignment]

    def start(self) -> None:
        """Fork the worker."""
        with _withheld():
            super().start()
        # Close our copy before the next worker inherits it; otherwise checking a dead worker blocks for 30 s.
        self.child_conn.close()

    def _begin(self, sockets: list[socket.socket]) -> None:
        """Serve, with the signal handlers of a new process."""
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS} - _WITHHELD)
        self._server = StoppableServer(self.config)
        with suppress(KeyboardInterrupt):  # raised again by uvicorn after a stop by SIGINT
            self.target(sockets)


class _Supervisor(Multiprocess):
    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._answered: dict[Process, bool] = {}

    def init_processes(self) -> None:
        """Start the workers."""
        self.processes += [self._started() for _ in range(self.processes_num)]

    def _started(self) -> Process:
        worker = _Worker(self.config, self.sockets)
        worker.start()
        return worker

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended or hang, and remove dead ones from the metrics.

        A worker that has never answered is not checked: on a busy machine it may take a minute to start, and so would a
        replacement.
        """
        for place, worker in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if worker.process.is_alive() and not self._has_answered(worker):
                continue
            if not worker.is_alive(timeout=self.config.timeout_worker_healthcheck):
                self._replace(place, worker)

    def _replace(self, place: int, worker: Process) -> None:
        worker.kill()
        worker.join()
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
        if worker.exitcode == STARTUP_FAILURE:
            logger.error("worker %(pid)d cannot start; stopping", {"pid": worker.pid})
            self.should_exit.set()
        elif not self.should_exit.is_set():
            self.processes[place] = self._started()

    def handle_ttin(self) -> None:
        """Start one more worker."""
        self.processes_num += 1
        self.processes.append(self._started())

    def _has_answered(self, process: Process) -> bool:
        self._answered = {worker: known for worker, known in self._answered.items() if worker in self.processes}
        try:
            if process not in self._answered:
                self._answered[process] = False
                process.parent_conn.send(b"ping")
            elif not self._answered[process] and process.parent_conn.poll():
                process.parent_conn.recv()
                self._answered[process] = True
        except (OSError, EOFError):
            return True  # it has just ended
        return self._answered[process]

    def handle_int(self) -> None:
        """Stop without notice, like a worker that receives the signal directly."""
        super().handle_int()
        self._pass_on(signal.SIGINT)

    def terminate_all(self) -> None:
        """Stop listening first, because no worker would accept connections made while they drain."""
        for listener in self.sockets:
            listener.close()
        self.signal_queue.clear()
        super().terminate_all()

    def join_all(self) -> None:
        """Wait for the workers, and pass on signals that arrive during the wait."""
        for process in self.processes:
            while process.exitcode is None:
                process.process.join(_LOOK)
                if {signal.SIGTERM, signal.SIGINT}.intersection(self.signal_queue):
                    self._pass_on(signal.SIGTERM)
                self.signal_queue.clear()
        super().join_all()

    def _pass_on(self, number: int) -> None:
        for process in self.processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, number)

    def handle_hup(self) -> None:
        """Pass SIGHUP on instead of replacing the workers: requests in flight continue."""
        self._pass_on(signal.SIGHUP)
