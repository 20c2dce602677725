"""Listen at an address and run an app there until a signal comes.

uvicorn ends the process well: on SIGTERM or Ctrl-C it takes no more connections, answers what it has accepted, and
stops. The address is taken before the model is loaded, so that a port in use is reported at once; clients that come
before the app runs wait.
"""

import asyncio
import contextlib
import errno
import socket
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertvision.errors import ConfigError
from bertvision.serve.config import ServeConfig


def listen(config: ServeConfig) -> socket.socket:
    """A listening socket."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = f"port {config.port} is in use: give another with --port, or 0 for any"
        else:
            reason = f"cannot listen at --host {config.host} --port {config.port} ({error}): give another"
        raise ConfigError(reason) from error


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: FastAPI, listener: socket.socket, config: ServeConfig) -> None:
    """Answer until a signal comes and everything that was accepted has its answer."""
    settings: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False, "ws": "none"}
    settings |= {"server_header": False, "timeout_graceful_shutdown": int(config.timeout) + 5}
    limits = {"seconds": config.timeout, "most": config.max_connections}
    protocol: Any = type("Protocol", (_Protocol,), limits)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", http=protocol, **settings))
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal that ended it once more
        server.run(sockets=[listener])


class _Protocol(H11Protocol):
    """A connection with limits that uvicorn has none for: time for a request's headers, time for a client to read its
    answer, and the number of open connections."""

    seconds = 0.0
    most = 0
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.close()
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def _watch_headers(self) -> None:
        if self._late is None and self.conn.their_state is h11.IDLE:  # not all headers are there
            self._late = self.loop.call_later(self.seconds, self.transport.close)
        elif self._late is not None and self.conn.their_state is not h11.IDLE:
            self._late.cancel()
            self._late = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
