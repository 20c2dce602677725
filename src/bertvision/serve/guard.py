"""ASGI middleware around every request: key, Host header, limits of the body, security headers, counters.

Every route needs the key, but for those in `OPEN` and the files of the page. A refusal that leaves a body unread closes
the connection, so that nobody can hold it or keep sending.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from bertvision.serve.config import ServeConfig
from bertvision.serve.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN = frozenset({"/health", "/ready"})
"""Routes that need no key, besides the files of the page."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
    # The page loads nothing from elsewhere and is shown in no other page.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
}
"""Sent with every answer."""


class Guard:
    def __init__(
        self, app: Any, *, config: ServeConfig, key: str | None, metrics: Metrics, open_paths: frozenset[str],
        routes: frozenset[str],
    ) -> None:  # fmt: skip
        """
        Args:
            open_paths: Paths that need no key.
            routes: Paths counted by their own name; all others are counted together.
        """
        self.app, self.config, self.metrics = app, config, metrics
        self.open_paths, self.routes = open_paths, routes
        self._key = None if key is None else _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        route = scope["path"] if scope["path"] in self.routes else "other"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body = _Body(receive, headers, self.config)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = HEADERS if body.complete else HEADERS | {"connection": "close"}
                own = {name for name, _ in message.get("headers", ())}
                more = [(n.encode(), v.encode()) for n, v in extra.items() if n.encode() not in own]
                message["headers"] = [*message.get("headers", ()), *more]
                self.metrics.requests.labels(route, str(message["status"])).inc()
            elif not message.get("more_body", False):
                self.metrics.seconds.labels(route).observe(time.perf_counter() - began)
            await send(message)

        refusal = self._refuse(scope["path"], headers)
        if refusal is None:
            await self.app(scope, body.receive, send_guarded)
        else:
            status, error, more = refusal
            await JSONResponse({"error": error}, status, more)(scope, receive, send_guarded)

    def _refuse(self, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]] | None:
        """Status, sentence and headers of a refusal that path and headers alone decide."""
        # A page on the web may point its own name at this machine; its requests then carry that name.
        host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if self.config.host in LOOPBACK and host.lower() not in LOOPBACK:
            return 421, "this server answers only as localhost: send the header Host: localhost", {}
        if self._key is not None and path not in self.open_paths:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # Compare SHA-256 digests in constant time, so timing reveals neither key nor length.
            same = hmac.compare_digest(_digest(given.strip().encode("latin-1")), self._key)
            if not (same and scheme.lower() == "bearer"):
                error = "this server needs its key: send the header Authorization: Bearer KEY"
                return 401, error, {"www-authenticate": "Bearer"}
        return None


class _Body:
    """The body of a request on its way to the app, with a limit of its length and of its time."""

    def __init__(self, receive: Receive, headers: dict[str, str], config: ServeConfig) -> None:
        self._receive, self._config = receive, config
        length = headers.get("content-length", "0")
        self.complete = length.strip("0") == "" and "transfer-encoding" not in headers
        """Whether the client has sent all of it."""
        self._announced = int(length) if length.isdigit() and len(length) < 19 else config.body_bytes + 1
        self._read = 0
        self._until = time.monotonic() + config.timeout

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        if self._announced > self._config.body_bytes:
            raise self._too_long()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            late = f"the request did not arrive within {self._config.timeout:g} s: send it faster"
            raise HTTPException(408, late) from None
        self._read += len(message.get("body", b""))
        if self._read > self._config.body_bytes:
            raise self._too_long()
        self.complete = not message.get("more_body", False)
        return message

    def _too_long(self) -> HTTPException:
        return HTTPException(413, f"the body is longer than {self._config.max_body}: send less at once")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
