"""Listen at an address and run an app there until a signal comes.

uvicorn ends the process well: on SIGTERM or Ctrl-C it takes no more connections, answers what it has accepted, and
stops. The address is taken before the model is loaded, so that a port in use is reported at once.
"""

import asyncio
import contextlib
import errno
import json
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertvision import console
from bertvision.errors import ConfigError
from bertvision.serve.config import ServeConfig
from bertvision.serve.guard import HEADERS

_log = logging.getLogger("bertvision")


def listen(config: ServeConfig) -> socket.socket:
    """A listening socket; clients that come before the model is loaded wait."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host {config.host} is no address of this machine: give another") from error
    family, kind, number, _, address = found[0]
    listener = socket.socket(family, kind, number)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        reasons = {
            errno.EADDRINUSE: f"port {config.port} is in use: give another with --port, or 0 for any",
            errno.EACCES: f"port {config.port} needs more rights: give one above 1023 with --port",
        }
        other = f"cannot listen at --host {config.host} --port {config.port} ({error.strerror}): give another"
        raise ConfigError(reasons.get(error.errno or 0, other)) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Around a server from its first import to its end: SIGTERM ends the process with code 0, Ctrl-C with 130, or with
    0 once it serves (uvicorn handles both meanwhile)."""

    def stop(*_: Any) -> None:
        console.note("stopped before it could answer")
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve(app: FastAPI, listener: socket.socket, config: ServeConfig, on_ready: Callable[[], None]) -> None:
    """Answer until a signal comes and everything that was accepted has its answer."""
    settings: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False, "ws": "none"}
    settings |= {"server_header": False, "timeout_graceful_shutdown": int(config.timeout) + 5}
    server = _Server(uvicorn.Config(app, lifespan="on", http=_protocol(config), **settings))
    server.on_ready = on_ready
    # uvicorn raises the signal that ended it once more when it is done; that must not look like a failure.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    on_ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _log.info("stopping: accepted requests are answered first")
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """A connection with limits that uvicorn has none for: time for a request's headers, time for a client to read its
    answer, and the number of open connections. What is not HTTP at all is refused with one sentence."""

    seconds = 0.0
    most = 0
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.close()
            return
        self._late = self.loop.call_later(self.seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # IDLE: the headers of the next request are not there yet, or not all of them.
        if self.conn.their_state is not h11.IDLE:
            self._late = _cancelled(self._late)
        elif self._late is None:
            self._late = self.loop.call_later(self.seconds, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck = _cancelled(self._stuck)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late, self._stuck = _cancelled(self._late), _cancelled(self._stuck)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        body = json.dumps({"error": "this is not an HTTP request, or its headers are too long"}).encode()
        headers = HEADERS | {"content-type": "application/json", "connection": "close"}
        headers["content-length"] = str(len(body))
        start = h11.Response(status_code=400, headers=list(headers.items()), reason="Bad Request")
        for part in (start, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _protocol(config: ServeConfig) -> Any:
    return type("Protocol", (_Protocol,), {"seconds": config.timeout, "most": config.max_connections})
