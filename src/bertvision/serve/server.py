"""What stands between the network and the routes: listening, limits of connections, and the guard of every request.

uvicorn ends the process well: on SIGTERM or Ctrl-C it takes no more connections, answers what it has accepted, and
stops. The address is taken before the model is loaded, so that a port in use is reported at once; clients that come
before the app runs wait.
"""

import asyncio
import contextlib
import errno
import hashlib
import hmac
import socket
import time
from collections.abc import Container
from typing import Any

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertvision.errors import ConfigError
from bertvision.serve.config import ServeConfig
from bertvision.serve.service import Metrics

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
    # The page loads nothing from elsewhere and is shown in no other page.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
}
"""Sent with every answer."""


# ---- connections


def listen(config: ServeConfig) -> tuple[socket.socket, str]:
    """A listening socket, and its URL."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        reason = f"cannot listen at --host {config.host} --port {config.port} ({error}): give another"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = f"port {config.port} is in use: give another with --port, or 0 for any"
        raise ConfigError(reason) from error
    host, port = listener.getsockname()[:2]
    return listener, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: ASGIApp, listener: socket.socket, config: ServeConfig) -> None:
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


# ---- requests


def guard(
    app: ASGIApp, config: ServeConfig, metrics: Metrics, key: str | None, open_paths: Container[str]
) -> ASGIApp:
    """ASGI middleware around every request: key, Host header, limits of the body, security headers, counters.

    Every route but the open paths needs the key. A refusal that leaves a body unread closes the connection, so that
    nobody can hold it or keep sending.
    """
    limit = config.body_bytes

    def check(path: str, headers: Headers) -> None:
        """Refuse what path and headers alone decide."""
        # A page on the web may point its own name at this machine; its requests then carry that name.
        host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if config.host in LOOPBACK and host.lower() not in LOOPBACK:
            raise HTTPException(421, "this server answers only as localhost: send the header Host: localhost")
        if key is not None and path not in open_paths:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # Compare SHA-256 digests in constant time, so timing reveals neither key nor length.
            found, wanted = (hashlib.sha256(text.encode("latin-1")).digest() for text in (given.strip(), key))
            if not hmac.compare_digest(found, wanted) or scheme.lower() != "bearer":
                error = "this server needs its key: send the header Authorization: Bearer KEY"
                raise HTTPException(401, error, {"www-authenticate": "Bearer"})
        check_length(int(headers.get("content-length", "0")))  # h11 lets nothing but digits through

    def check_length(length: int) -> None:
        if length > limit:
            raise HTTPException(413, f"the body is longer than {config.max_body}: send less at once")

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        began, headers = time.monotonic(), Headers(scope=scope)
        unread = headers.get("content-length", "0").strip("0") != "" or "transfer-encoding" in headers
        length, until = 0, asyncio.get_running_loop().time() + config.timeout

        async def receive_guarded() -> Message:
            nonlocal length, unread
            try:
                # Without a body to read it waits for the client to leave.
                async with asyncio.timeout_at(until if unread else None):
                    message = await receive()
            except TimeoutError:
                late = f"the request did not arrive within {config.timeout:g} s: send it faster"
                raise HTTPException(408, late) from None
            length += len(message.get("body", b""))
            check_length(length)
            unread = message.get("more_body", False)
            return message

        async def send_guarded(message: Message) -> None:
            # What no route answers is counted together.
            route = getattr(scope.get("route"), "path", "other")
            if message["type"] == "http.response.start":
                more = _HEADERS | ({"connection": "close"} if unread else {})
                made = {**more, **Headers(raw=message["headers"])}
                message["headers"] = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in made.items()]
                metrics.requests.labels(route, str(message["status"])).inc()
            elif not message.get("more_body", False):
                metrics.seconds.labels(route).observe(time.monotonic() - began)
            await send(message)

        try:
            check(scope["path"], headers)
            await app(scope, receive_guarded, send_guarded)
        except HTTPException as refusal:
            answer = JSONResponse({"error": refusal.detail}, refusal.status_code, refusal.headers)
            await answer(scope, receive, send_guarded)

    return guarded
