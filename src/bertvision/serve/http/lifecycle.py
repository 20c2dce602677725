"""A server from its address to its last answer.

The address is taken before the model is loaded, so that a port in use is told at once. SIGTERM (and Ctrl-C) begins the
end: what is being computed or waits is answered, what comes is refused with 503, then the process ends with code 0. A
second signal ends it without waiting. Before all of this starting.py has the signals.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from bertvision.errors import ConfigError
from bertvision.serve.http.connection import connection_of
from bertvision.serve.http.limits import ServeConfig
from bertvision.serve.http.service import Service

__all__ = ["listen", "serve", "url_of"]

_log = logging.getLogger("bertvision")
_BACKLOG = 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def listen(config: ServeConfig) -> socket.socket:
    """A socket at the address; clients that come before the model is loaded wait."""
    place = f"--host {config.host} --port {config.port}"
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host {config.host} is no address of this machine: give another") from error
    family, kind, number, _, address = found[0]
    listener = socket.socket(family, kind, number)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {config.port} is in use: give another with --port, or 0 for any"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ConfigError(
                f"port {config.port} may not be taken by this user: give one above 1023 with --port"
            ) from error
        raise ConfigError(f"{place} cannot be listened at ({error.strerror}): give another") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn that leaves signals to `serve`: its own handlers would close the door before the last answers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(app: FastAPI, listener: socket.socket, config: ServeConfig, on_ready: Callable[[], None]) -> None:
    """Answer until a signal comes and everything that was accepted has its answer."""
    asyncio.run(_serve(app, listener, config, on_ready))


async def _serve(
    app: FastAPI, listener: socket.socket, config: ServeConfig, on_ready: Callable[[], None]
) -> None:
    # Only errors: what uvicorn warns of is what clients do, and they would decide how long the log gets.
    settings: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False}
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="on",
            http=connection_of(config.timeout),
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=int(config.timeout) + 5,
            **settings,
        )
    )
    service: Service = app.state.service
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []

    def end() -> None:
        if ending:
            return
        service.stopping = True
        ending.append(asyncio.create_task(_finish(server, service, config)))
        # Last, because whoever read the log may be gone, and then this line raises.
        _log.info("stopping: what was accepted is answered first")

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # The next one, of either kind, ends the process as if nobody handled it, whatever it is doing.
        for either in _SIGNALS:
            signal.signal(either, signal.SIG_DFL)
        loop.call_soon_threadsafe(end)

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    watch = asyncio.create_task(_announce(server, on_ready))
    try:
        await server.serve(sockets=[listener])
    finally:
        watch.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


async def _announce(server: uvicorn.Server, on_ready: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    on_ready()


async def _finish(server: uvicorn.Server, service: Service, config: ServeConfig) -> None:
    """Close the door when the queue is empty; no request waits longer than its own time."""
    until = asyncio.get_running_loop().time() + config.timeout
    while not service.batcher.idle and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.02)
    server.should_exit = True
